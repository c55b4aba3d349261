"""Numbers with their nouns, for messages."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """'1 image', '2 images', '1,234 boxes'. plural: where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"

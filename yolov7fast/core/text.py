"""Text that comes from files and file names, made safe to print."""


def printable(text: object, limit: int = 1000) -> str:
    """The text with control characters and undecodable bytes written as escapes, cut after `limit` characters."""
    text = str(text)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:limit])
    return f"{shown}..." if len(text) > limit else shown

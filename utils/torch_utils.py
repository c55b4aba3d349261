"""Names that scripts out there import from here; they live in the module below."""

from utils.device import select_device, time_synchronized

__all__ = ["select_device", "time_synchronized"]

"""What towers for pictures share: resizing and patches on the host, layers on the device."""

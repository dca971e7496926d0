"""How weights lie on a device: planes, which every device reads, and what families have instead.

`layout` says what a layout is, `planes` has the portable one. A weight's layout is decided once,
when it is loaded, and its storage carries it.
"""

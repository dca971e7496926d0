"""Weight layouts on a device: planes, which every device reads, and what kernel families add.

`layout` defines a layout, `planes` is the portable one. A weight's layout is decided once, when it
is loaded, and its storage carries it.
"""

"""Which unit holds which blocks: as engines report it, as remembered, as expected."""

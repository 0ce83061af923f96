"""What commands print, whoever answered: the emulator or the real library."""

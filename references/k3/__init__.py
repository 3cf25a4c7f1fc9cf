"""The engine that strings kernels into steps. It takes its kernels as an argument: the emulators, or the same kernels on a device."""

"""What backends and policies are to the kernel: each call is checked, settings, stores."""

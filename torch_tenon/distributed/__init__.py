"""`torch.distributed` on the device: process groups, and which rank is gone when one fails."""

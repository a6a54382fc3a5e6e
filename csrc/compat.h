// What differs between the PyTorch versions that the core builds against (2.11 and 2.13), and
// nothing else. Every other file is written against the newest of them.
#pragma once

#include <torch/version.h>

#define TENON_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||        \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Virtual functions that a later version added to an interface are marked with this instead of
// `override`, so that they are plain members where the interface does not have them.
#if TENON_TORCH_AT_LEAST(2, 13)
#define TENON_OVERRIDE_SINCE_2_13 override
#else
#define TENON_OVERRIDE_SINCE_2_13
#endif

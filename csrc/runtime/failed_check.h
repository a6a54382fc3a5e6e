// What a kernel's check that failed raises.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/error.h"

namespace tenon {

// The error of the check that left this status (`kStatusWords` of them), in the kernel of that
// name: of the kind and with the text that PyTorch has.
Error failed_check(std::span<const int64_t> status, const std::string& step);

}  // namespace tenon

// Page-aligned host memory, which transfers read and write without a copy in between.
#pragma once

#include <c10/core/Allocator.h>

namespace tenon {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* ptr);

}  // namespace tenon

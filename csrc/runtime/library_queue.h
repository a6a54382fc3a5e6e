// A queue of a device that a library serves.
#pragma once

#include "runtime/target_library.h"

namespace tenon {

// A ticket of a device, until nobody asks for it.
struct LibraryTicket {
  const TargetLibrary& library;
  const tenon_target_functions& table;
  const int32_t device;
  const uint64_t number;

  LibraryTicket(
      const TargetLibrary& library,
      const tenon_target_functions& table,
      int32_t device,
      uint64_t number)
      : library(library), table(table), device(device), number(number) {}
  ~LibraryTicket() {
    if (table.forget != nullptr && library.is_here())
      table.forget(table.context, device, number);
  }
  LibraryTicket(const LibraryTicket&) = delete;
  LibraryTicket& operator=(const LibraryTicket&) = delete;

  bool passed() const {
    library.check_is_here();
    return table.passed(table.context, device, number) != 0;
  }
  int32_t wait(tenon_status& status) const {
    library.check_is_here();
    return table.wait(table.context, device, number, &status);
  }
};

// `number`: 0 is the queue of kernels, the others are for copies.
std::unique_ptr<Queue> library_queue(
    std::shared_ptr<TargetLibrary> library,
    int32_t device,
    int32_t number,
    TargetLibrary::PlaceOf place_of);

}  // namespace tenon

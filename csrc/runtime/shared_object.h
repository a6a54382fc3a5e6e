// A shared object with kernels for this processor.
#pragma once

#include "runtime/plan.h"

namespace tenon {

class SharedObject final : public KernelOwner {
 public:
  // Raises where it does not open.
  explicit SharedObject(const std::string& path);
  // Of bytes, which are not needed afterwards.
  static std::shared_ptr<SharedObject> of_bytes(std::string_view bytes);
  ~SharedObject() override;
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  size_t nbytes() const override {
    return 0;
  }
  // null: there is no such name.
  void* find(const std::string& name) const;
  // Raises where there is no such name.
  void* symbol(const std::string& name) const;

 private:
  void* const handle_;
  int file_ = -1;
};

}  // namespace tenon

// oneDNN as what multiplies in exported programs, behind `tenon_products_t` of include/tenon.h.

#include <cstdio>

#include "products.h"

using tenon_onednn::Products;

namespace {

struct Opened {
  tenon_products_t table;
  Products products;
};

Products& of(void* context) {
  return static_cast<Opened*>(context)->products;
}

int32_t multiply(void* context, const tenon_host_t* host, const void* product, size_t nbytes) {
  if (nbytes != sizeof(tenon_matmul_t))
    return 1;  // of code that another version of the package wrote
  try {
    return of(context).multiply(*host, *static_cast<const tenon_matmul_t*>(product)) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;  // of what prepares it, such as no memory: nothing was done yet
  }
}

const char* facts(void* context) {
  try {
    return of(context).facts();
  } catch (const std::exception&) {
    return "{}";
  }
}

void close(void* context) {
  delete static_cast<Opened*>(context);
}

int32_t refuse(tenon_status* status, tenon_code code, const char* text, int major, int minor) {
  status->code = code;
  std::snprintf(
      status->text,
      sizeof(status->text),
      text,
      major,
      minor,
      DNNL_VERSION_MAJOR,
      DNNL_VERSION_MINOR);
  return code;
}

}  // namespace

extern "C" TENON_EXPORT int32_t
tenon_open_products(uint32_t interface, const tenon_products_t** found, tenon_status* status) {
  const auto& version = *dnnl_version();
  if (interface != TENON_INTERFACE)
    return refuse(status, TENON_UNSUPPORTED, "it is for another version of tenon.h", 0, 0);
  // A process may have another oneDNN, whose functions are found first.
  if (version.major != DNNL_VERSION_MAJOR || version.minor < DNNL_VERSION_MINOR)
    return refuse(
        status,
        TENON_UNSUPPORTED,
        "oneDNN is %d.%d here, and this library was built for %d.%d",
        version.major,
        version.minor);
  try {
    auto* const opened = new Opened;
    opened->table = {sizeof(tenon_products_t), opened, multiply, facts, close};
    *found = &opened->table;
    return TENON_OK;
  } catch (const std::exception&) {
    return refuse(status, TENON_ERROR, "oneDNN does not start", 0, 0);
  }
}

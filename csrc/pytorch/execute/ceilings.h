// The most that this machine was seen to do in a second.
#pragma once

#include <functional>

namespace tenon {

struct Ceilings {
  double bytes = 0;       // read and written by a copy; 0: nobody measured
  double operations = 0;  // of a product of float32 matrices
};
const Ceilings& ceilings();

// Measures them, unless that is done; by what Python gave.
void measure_ceilings();
void set_measure_ceilings(std::function<Ceilings()> measure);

}  // namespace tenon

// A plan as plain data in an archive: what a file of plans has of it.
#pragma once

#include <string>

#include "execute/plan.h"
#include "execute/sized_plan.h"
#include "record/archive.h"

namespace tenon {

// An op's name and overload, on a line each; and the op that has them.
std::string name_of(const c10::OperatorHandle& op);
c10::OperatorHandle op_of(const std::string& name);

template <class Archive>
void fields(Archive& archive, SizedNumber& x) {
  archive(x.where, x.index, x.which, x.field, x.at, x.value);
}

// Raises where a call's argument is no plain data.
void write_plan(Writer& archive, const PlanData& x);
// Its kernels have no functions yet. Raises where there is no such op, or no such data.
PlanData read_plan(Reader& archive);

}  // namespace tenon

// Room for the builder, while it works for this process: a processor that loops leave to it.
//
// OpenMP's threads keep their processors for some milliseconds after a loop, to be there for the
// next one. Where a program runs on one thread but for a loop of its own now and then (on the CPU,
// say, to make a batch), that alone would keep the builder, which waits for an idle processor, from
// getting any. So the threads sleep instead while little else needs them.
#pragma once

namespace tenon {

// How many threads leave a processor to others; 0: as many as there are do.
int fewer_threads();

// A window has run for so many seconds beside the builder, and left a processor to it or not.
void note_room(double seconds, bool left);
// Nobody needs room now.
void need_no_room();

// The threads of a plan's run beside the builder; 0: all.
int threads_beside_builder();

}  // namespace tenon

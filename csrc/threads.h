// The engine's thread pool: control side. The kernels see onepass/cpu/threads.h.
#pragma once

namespace onepass {

void prepare_threads();       // once, before any other call
void set_num_threads(int n);  // n >= 1
int get_num_threads();

}  // namespace onepass

// The engine's thread pool: control side. The kernels see onepass/cpu/threads.h.
#pragma once

namespace onepass {

void set_num_threads(int n);  // n >= 1
int get_num_threads();
bool threads_chosen();  // false until set_num_threads has been called

}  // namespace onepass

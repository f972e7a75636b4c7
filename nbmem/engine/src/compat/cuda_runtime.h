// What c10's headers use of the runtime's C++ interface is its C interface.
#pragma once
#include <cuda_runtime_api.h>

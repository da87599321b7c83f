#include "cuda_emu.hpp"  // the emulation of this CUDA header

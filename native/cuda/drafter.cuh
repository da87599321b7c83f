// The fused drafter on the device: weights and context stay there, and a whole append or propose is issued before anything is waited for.
//
// Appending and proposing have a stream each, ordered by two events, so that a caller can append the next rows while a block is still on
// its way. What the host hands over goes through pinned memory that nothing rewrites before an event says that its copies have run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config.hpp"
#include "../cpu/drafter.hpp"
#include "gpu.cuh"

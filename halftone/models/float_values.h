#pragma once

#include "halftone/tensor/float_values.h"

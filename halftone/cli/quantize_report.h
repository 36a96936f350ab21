// What halftone quantize --model did, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "halftone/quantize/quantize_model.h"

namespace halftone::cli {

nlohmann::ordered_json to_json(const ModelQuantizeResult& result);
void print_text(const ModelQuantizeResult& result);

}  // namespace halftone::cli

// Adapters: listed, put on the shelf, and taken from it.
#include "halftone/server/api.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

bool wants_replacing(const ApiCall& call) {
  const auto given = call.request.query.find("replace");
  if (given == call.request.query.end() || given->second == "false") return false;
  if (given->second == "true") return true;
  throw invalid("replace", "is neither true nor false");
}

}  // namespace

void add_lora_routes(Router& router, ApiContext& api) {
  router.add({.method = "GET",
              .pattern = "/api/loras",
              .summary = "Adapters that can be asked for, and the models that they fit",
              .result = "LoraList",
              .answer = [&api](const ApiCall&) {
                ordered_json loras = ordered_json::array();
                for (const auto& adapter : api.shelf.adapters()) {
                  loras.push_back(api.shelf.to_json(adapter));
                }
                return json_response({{"loras", loras}});
              }});
  router.add({.method = "PUT",
              .pattern = "/api/loras/{name}",
              .summary = "Adds an adapter, a .safetensors; replaces one only with replace=true",
              .takes_bytes = true,
              .most_bytes = api.limits.most_lora_bytes,
              .result = "Lora",
              .status = 201,
              .query = {"replace"},
              .answer = [&api](const ApiCall& call) {
                const std::string name = call.path.at("name");
                const bool is_new =
                    api.shelf.put_adapter(name, call.request.body, wants_replacing(call));
                constexpr std::string_view kKind = ".safetensors";
                const bool file = name.ends_with(kKind);
                const auto adapter =
                    api.shelf.adapter(file ? name.substr(0, name.size() - kKind.size()) : name);
                return json_response(api.shelf.to_json(adapter), is_new ? 201 : 200);
              }});
  router.add({.method = "DELETE",
              .pattern = "/api/loras/{name}",
              .summary = "Removes one that was made or added here",
              .status = 204,
              .answer = [&api](const ApiCall& call) {
                api.shelf.remove_adapter(call.path.at("name"));
                HttpResponse response;
                response.status = 204;
                response.type = "";
                return response;
              }});
}

}  // namespace halftone

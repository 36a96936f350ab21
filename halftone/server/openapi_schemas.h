// What answers look like: the document's schemas, as JSON. Tests hold answers to them.
#pragma once

namespace halftone {

inline constexpr const char* kAnswerSchemas = R"JSON({
"Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
  "required": ["code", "field", "message"], "properties": {
    "code": {"type": "string"}, "field": {"type": "string"}, "message": {"type": "string"}}}}},
"Any": {},
"Choice": {"type": "object", "required": ["asked", "used", "how", "why"], "properties": {
  "asked": {"type": "string"}, "used": {"type": "string"}, "how": {"type": "string"},
  "why": {"type": "string"}}},
"Support": {"type": "object", "required": ["name", "support", "why"], "properties": {
  "name": {"type": "string"}, "support": {"type": "string", "enum": ["native", "emulated", "unavailable"]},
  "why": {"type": "string"}}},
"Result": {"type": "object", "required": ["name", "type", "url", "bytes", "media"], "properties": {
  "name": {"type": "string"}, "type": {"type": "string"}, "url": {"type": "string"},
  "bytes": {"type": "integer"},
  "media": {"type": "string", "enum": ["image", "video", "audio", "page", "adapter", "model", "data"]},
  "width": {"type": "integer"}, "height": {"type": "integer"}, "seed": {"type": "integer"},
  "step": {"type": "integer"}, "prompt": {"type": "string"}}},
"Progress": {"type": "object", "required": ["stage", "done", "total"], "properties": {
  "stage": {"type": "string"}, "done": {"type": "integer"}, "total": {"type": "integer"},
  "seconds_left": {"type": ["number", "null"]}, "loss": {"type": "number"},
  "average_loss": {"type": "number"}, "learning_rate": {"type": "number"},
  "gradient_norm": {"type": "number"}, "samples_per_second": {"type": ["number", "null"]},
  "peak_bytes": {"type": "integer"}}},
"Job": {"type": "object", "required": ["id", "kind", "state", "model", "created", "started",
  "finished", "position", "cancelling", "can_resume", "request", "progress", "results", "summary",
  "error"], "properties": {
  "id": {"type": "string"},
  "kind": {"type": "string", "enum": ["generate", "train", "quantize", "compare"]},
  "state": {"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
  "model": {"type": "string"}, "created": {"type": "number"}, "started": {"type": ["number", "null"]},
  "finished": {"type": ["number", "null"]}, "position": {"type": ["integer", "null"]},
  "cancelling": {"type": "boolean"}, "can_resume": {"type": "boolean"}, "owner": {"type": "string"},
  "priority": {"type": "integer"}, "request": {"type": "object"},
  "progress": {"anyOf": [{"$ref": "#/components/schemas/Progress"}, {"type": "null"}]},
  "results": {"type": "array", "items": {"$ref": "#/components/schemas/Result"}},
  "summary": {"type": "object"},
  "error": {"anyOf": [{"type": "object"}, {"type": "null"}]}}},
"JobList": {"type": "object", "required": ["jobs", "next"], "properties": {
  "jobs": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}},
  "next": {"type": ["string", "null"]}}},
"Model": {"type": "object", "required": ["id", "title", "media", "error", "loaded", "bytes"],
  "properties": {
  "id": {"type": "string"}, "title": {"type": "string"}, "media": {"type": "string"},
  "error": {"type": "string"}, "family": {"type": "string"}, "family_title": {"type": "string"},
  "loaded": {"type": "array", "items": {"type": "string"}}, "bytes": {"type": "integer"},
  "precisions": {"type": "array", "items": {"$ref": "#/components/schemas/Support"}},
  "recommended": {"type": "object", "required": ["precision", "why", "certificate"]},
  "defaults": {"type": "object", "required": ["width", "height", "steps", "guidance", "negative",
    "multiple"]},
  "schedulers": {"type": "array", "items": {"type": "string"}},
  "default_scheduler": {"type": "string"},
  "memory": {"type": "object"}, "supports_compile": {"type": "boolean"},
  "trains": {"type": "object", "required": ["possible", "why", "modes", "resolution", "precisions",
    "backward", "compile"]},
  "quantizes": {"type": "object", "required": ["possible", "why"]}}},
"ModelList": {"type": "object", "required": ["models"], "properties": {
  "models": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Lora": {"type": "object", "required": ["name", "bytes", "changed", "editable", "error", "fits",
    "partly", "unfit"], "properties": {
  "name": {"type": "string"}, "bytes": {"type": "integer"}, "changed": {"type": "number"},
  "editable": {"type": "boolean"}, "error": {"type": "string"},
  "fits": {"type": "array", "items": {"type": "string"}},
  "partly": {"type": "array", "items": {"type": "object",
    "required": ["model", "unmatched", "first"], "properties": {"model": {"type": "string"},
    "unmatched": {"type": "integer"}, "first": {"type": "string"}}}},
  "unfit": {"type": "array", "items": {"type": "object", "required": ["model", "why"],
    "properties": {"model": {"type": "string"}, "why": {"type": "string"}}}},
  "base_precision": {"type": "string"}, "base_hash": {"type": "string"},
  "trigger": {"type": "string"}, "steps": {"type": "string"}}},
"LoraList": {"type": "object", "required": ["loras"], "properties": {
  "loras": {"type": "array", "items": {"$ref": "#/components/schemas/Lora"}}}},
"Device": {"type": "object", "required": ["name", "title", "kind", "formats", "memory", "used"],
  "properties": {
  "name": {"type": "string"}, "title": {"type": "string"},
  "kind": {"type": "string", "enum": ["cpu", "cuda"]}, "used": {"type": "boolean"},
  "formats": {"type": "array", "items": {"$ref": "#/components/schemas/Support"}},
  "memory": {"type": "object", "required": ["total", "available"]}}},
"Info": {"type": "object", "required": ["version", "store", "uptime", "devices", "why_no_gpu",
  "queue", "limits", "fallbacks", "trains", "needs_key", "models"], "properties": {
  "version": {"type": "string"}, "store": {"type": "string"}, "uptime": {"type": "number"},
  "devices": {"type": "array", "items": {"$ref": "#/components/schemas/Device"}},
  "why_no_gpu": {"type": "string"},
  "queue": {"type": "object", "required": ["queued", "running", "most"]},
  "limits": {"type": "object"},
  "fallbacks": {"type": "array", "items": {"type": "string"}},
  "trains": {"type": "boolean"}, "needs_key": {"type": "boolean"},
  "models": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"DatasetList": {"type": "object", "required": ["datasets"], "properties": {"datasets": {
  "type": "array", "items": {"type": "object", "required": ["name", "pictures", "captioned",
    "bytes", "editable"], "properties": {"name": {"type": "string"}, "pictures": {"type": "integer"},
    "captioned": {"type": "integer"}, "bytes": {"type": "integer"},
    "editable": {"type": "boolean"}}}}}},
"Dataset": {"type": "object", "required": ["name", "editable", "items", "skipped"], "properties": {
  "name": {"type": "string"}, "editable": {"type": "boolean"},
  "items": {"type": "array", "items": {"type": "object", "required": ["file", "caption", "url"]}},
  "skipped": {"type": "array", "items": {"type": "object", "required": ["file", "why"]}}}},
"OpenAiImages": {"type": "object", "required": ["created", "data"], "properties": {
  "created": {"type": "integer"}, "data": {"type": "array", "items": {"type": "object",
    "properties": {"b64_json": {"type": "string"}, "url": {"type": "string"}}}}}},
"OpenAiModel": {"type": "object", "required": ["id", "object", "created", "owned_by"],
  "properties": {"id": {"type": "string"}, "object": {"type": "string"},
  "created": {"type": "integer"}, "owned_by": {"type": "string"}}},
"OpenAiModels": {"type": "object", "required": ["object", "data"], "properties": {
  "object": {"type": "string"},
  "data": {"type": "array", "items": {"$ref": "#/components/schemas/OpenAiModel"}}}}
})JSON";

}  // namespace halftone

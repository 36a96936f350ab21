// Halftone in C, for C and for every language that calls it. From a model to a picture:
//
//   halftone_engine_create(&engine);
//   halftone_model_options_init(&options, sizeof options);   options.path = "Z-Image-Turbo";
//   halftone_model_load(engine, &options, &model);
//   halftone_request_init(model, &request, sizeof request);  request.prompt = "a lighthouse at
//   dusk"; halftone_generate(model, &request, &result); halftone_result_write_png(result, 0,
//   "lighthouse.png");
//
// Errors: calls that can fail return a status. What went wrong, in words, belongs to the thread
// that called: halftone_last_error(). So there is nothing to free, calls that have no handle yet
// can explain themselves, and threads that share an engine do not overwrite each other's words.
// Arguments that are NULL, or fields out of range, are errors and crash nothing. No C++ exception
// leaves a call.
//
// Threads: an engine, a model, an adapter and a result may each be used by any number of threads at
// once. Runs on one model at once take memory each; those on one GPU take turns.
//
// Handles are freed once each, in any order; what others still need stays alive. Freeing NULL does
// nothing. Freeing a handle twice, or using it afterwards, is not allowed, and neither is freeing
// one that another thread is using.
//
// Structs grow at their end: the init functions take sizeof, so that programs and libraries of
// different ages understand each other. Text is UTF-8 and ends with a zero byte.
#ifndef HALFTONE_HALFTONE_C_H_
#define HALFTONE_HALFTONE_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HALFTONE_API __attribute__((visibility("default")))
#else
#define HALFTONE_API
#endif

// Any number is a status to C, and so it is to C++.
#ifdef __cplusplus
#define HALFTONE_ANY_INT : int
extern "C" {
#else
#define HALFTONE_ANY_INT
#endif

typedef enum halftone_status HALFTONE_ANY_INT {
  HALFTONE_OK = 0,
  HALFTONE_INVALID_INPUT = 1,  // a file, or what the model makes of a value, is wrong
  HALFTONE_USAGE = 2,          // the call is wrong: a NULL, a value out of range
  HALFTONE_NOT_FOUND = 3,
  HALFTONE_IO = 4,  // the operating system refused: full disk, permissions
  HALFTONE_UNSUPPORTED = 5,
  HALFTONE_OUT_OF_MEMORY = 6,  // known before a run, wherever it can be
  HALFTONE_FALLBACK = 7,       // something would have run in another way, and strict forbids it
  HALFTONE_CANCELLED = 8,      // the progress callback said so
  HALFTONE_INTERNAL = 9        // a defect of Halftone
} halftone_status;

// Of the last call in this thread that failed; "" before any has. Valid until the next one fails.
HALFTONE_API const char* halftone_last_error(void);        // one line: "size: 100x100 is ..."
HALFTONE_API const char* halftone_last_error_field(void);  // the file or the field alone: "size"
HALFTONE_API const char* halftone_status_name(halftone_status status);  // "not found"
HALFTONE_API const char* halftone_version(void);                        // "0.1.0"

// The engine: devices, and what models share.
typedef struct halftone_engine halftone_engine;
HALFTONE_API halftone_status halftone_engine_create(halftone_engine** engine);
HALFTONE_API void halftone_engine_free(halftone_engine* engine);

// Which model, and how it is to run. A field that is NULL or 0 after init may stay so.
typedef struct halftone_model_options {
  size_t size;            // set by init
  const char* path;       // a folder in diffusers layout, or a denoiser as a single file;
                          // NULL: the model that is installed with Halftone
  const char* base;       // with a single file: the folder of what it does not hold
  const char* precision;  // "auto", "stored", "fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4"
  const char* device;     // "auto", "cpu", "cuda", "cuda:1"
  const char* compile;    // "auto", "on", "off"
  int32_t threads;        // of the CPU, for each run; 0: all
  int32_t strict;         // not 0: a fallback is an error
  double threshold;       // of a certificate's velocity cosine, for "auto"
  const char* text_precision;  // of the text encoders' weights: "auto", "fp8", "mxfp8", ...
} halftone_model_options;
HALFTONE_API halftone_status halftone_model_options_init(halftone_model_options* options,
                                                         size_t size);

typedef struct halftone_model halftone_model;
HALFTONE_API halftone_status halftone_model_load(halftone_engine* engine,
                                                 const halftone_model_options* options,
                                                 halftone_model** model);
HALFTONE_API void halftone_model_free(halftone_model* model);

// What became of the choices. Pointers are valid as long as the model.
typedef struct halftone_model_info {
  const char* path;
  const char* family;         // "z-image"
  const char* precision;      // that it runs in
  const char* precision_how;  // "native", "emulated" or "fallback"
  const char* precision_why;  // "" where there is nothing to say
  const char* device;         // "cpu", "cuda:0"
  int32_t threads;            // of the CPU
  size_t fallback_count;      // what runs in another way than asked for, a line each
  const char* const* fallbacks;
} halftone_model_info;
HALFTONE_API halftone_status halftone_model_describe(const halftone_model* model,
                                                     halftone_model_info* info, size_t size);

// An adapter (LoRA) for a model, from a file or a folder. It is given with a request, so that one
// loaded model serves requests with different ones.
typedef struct halftone_adapter halftone_adapter;
HALFTONE_API halftone_status halftone_adapter_load(const halftone_model* model, const char* file,
                                                   halftone_adapter** adapter);
HALFTONE_API void halftone_adapter_free(halftone_adapter* adapter);

// Where a run is. Pointers are valid during the callback.
typedef struct halftone_progress {
  const char* stage;  // "text", "denoising", "decoding", "done"
  int64_t step;       // denoising steps that are done, over all batches
  int64_t steps;      // of so many
  int64_t pictures;   // that are finished
} halftone_progress;
// Called in the thread that called halftone_generate: before every step and, on the CPU, about
// every tenth of a second in between. Anything but 0 ends the run with HALFTONE_CANCELLED.
typedef int (*halftone_progress_fn)(void* user, const halftone_progress* progress);

// What to draw. Init fills in the model's own size, steps and guidance.
typedef struct halftone_request {
  size_t size;            // set by init
  const char* prompt;     // needed
  const char* negative;   // what to avoid; needs guidance. NULL: none, which is not always the
                          // same as ""
  const char* scheduler;  // "flow-euler", "dpm++-2m", "unipc", ...; NULL: the model's own
  int64_t width, height;  // pixels
  int32_t steps;          // 1 .. 1000
  float guidance;         // 0 .. 100
  uint64_t seed;          // picture i has seed + i
  int32_t count;          // pictures
  int32_t batch;          // pictures made at a time; changes memory and speed, no bit of a picture
  size_t adapter_count;
  const halftone_adapter* const* adapters;  // [adapter_count]
  const float* strengths;                   // [adapter_count]; NULL: 1 each
  int64_t max_memory;                       // bytes that may be planned; 0: what is free
  halftone_progress_fn progress;            // NULL: none
  void* user;                               // what it is given
  float true_cfg;  // guidance of families whose networks read `guidance` themselves; 0: none
  float cache;     // how much tokens may change before blocks run again; 0: they always do
  const char*
      skip_layers;  // "7,8,9": blocks that guidance leads away from being without; NULL: none
  float skip_layer_scale;  // how strongly; 0: the usual
  // Of families that are told of sizes: the picture that this one is a part of, 0 its own size, and
  // where the part begins in it.
  int64_t original_width, original_height;
  int64_t crop_left, crop_top;
} halftone_request;
HALFTONE_API halftone_status halftone_request_init(const halftone_model* model,
                                                   halftone_request* request, size_t size);

// Memory that a request takes where it runs, known without running it.
typedef struct halftone_memory {
  int64_t peak;              // bytes: the sum of the next three
  int64_t weights;           // converted on loading, or on a GPU; shared by all runs of the model
  int64_t values;            // while it runs
  int64_t scratch;           // of kernels
  int64_t weights_in_files;  // read in place; the system may drop and read them again
} halftone_memory;
HALFTONE_API halftone_status halftone_plan(const halftone_model* model,
                                           const halftone_request* request, halftone_memory* memory,
                                           size_t size);

// Pictures, all of a request's or none.
typedef struct halftone_result halftone_result;
HALFTONE_API halftone_status halftone_generate(const halftone_model* model,
                                               const halftone_request* request,
                                               halftone_result** result);
HALFTONE_API void halftone_result_free(halftone_result* result);

typedef struct halftone_result_info {
  size_t count;  // pictures
  double text_seconds, denoise_seconds, decode_seconds;
  size_t fallback_count;  // what was done in another way than it should have been
  const char* const* fallbacks;
} halftone_result_info;
HALFTONE_API halftone_status halftone_result_describe(const halftone_result* result,
                                                      halftone_result_info* info, size_t size);

// Pointers are valid as long as the result.
typedef struct halftone_picture {
  int64_t width, height;
  uint64_t seed;
  const uint8_t* rgb;           // [height, width, 3]: rows without padding
  const float* pixels;          // [3, height, width], about -1 to 1, as the model gave them
  const float* latents;         // of latent_shape
  const int64_t* latent_shape;  // [latent_rank]
  size_t latent_rank;
} halftone_picture;
HALFTONE_API halftone_status halftone_result_picture(const halftone_result* result, size_t index,
                                                     halftone_picture* picture, size_t size);

// As `halftone generate` writes it: whole or not at all, with prompt, seed and the model's hash.
HALFTONE_API halftone_status halftone_result_write_png(const halftone_result* result, size_t index,
                                                       const char* path);

#ifdef __cplusplus
}
#endif

#endif  // HALFTONE_HALFTONE_C_H_

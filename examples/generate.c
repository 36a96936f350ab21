// Draws a picture: generate_c MODEL PROMPT SEED OUT.png
#include <halftone/halftone_c.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static volatile sig_atomic_t interrupted = 0;

static void on_interrupt(int signal) {
  (void)signal;
  interrupted = 1;
}

static int on_progress(void* user, const halftone_progress* now) {
  (void)user;
  fprintf(stderr, "\r%s, step %d of %d ", now->stage, (int)now->step, (int)now->steps);
  return interrupted;
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s MODEL PROMPT SEED OUT.png\n", argv[0]);
    return 2;
  }
  signal(SIGINT, on_interrupt);
  halftone_engine* engine = NULL;
  halftone_model* model = NULL;
  halftone_result* result = NULL;
  halftone_model_options options;
  halftone_request request;

  halftone_status status = halftone_engine_create(&engine);
  if (status == HALFTONE_OK) {
    status = halftone_model_options_init(&options, sizeof options);
  }
  if (status == HALFTONE_OK) {
    options.path = argv[1];
    status = halftone_model_load(engine, &options, &model);
  }
  if (status == HALFTONE_OK) {
    status = halftone_request_init(model, &request, sizeof request);
  }
  if (status == HALFTONE_OK) {
    request.prompt = argv[2];
    request.seed = strtoull(argv[3], NULL, 10);
    request.progress = on_progress;
    status = halftone_generate(model, &request, &result);
  }
  if (status == HALFTONE_OK) {
    status = halftone_result_write_png(result, 0, argv[4]);
  }
  if (status == HALFTONE_OK) {
    printf("%s\n", argv[4]);
  } else {
    fprintf(stderr, "\n%s: %s\n", argv[0], halftone_last_error());
  }
  halftone_result_free(result);
  halftone_model_free(model);
  halftone_engine_free(engine);
  return status == HALFTONE_OK ? 0 : status == HALFTONE_CANCELLED ? 130 : 1;
}

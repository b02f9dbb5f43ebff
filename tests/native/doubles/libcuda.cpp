// A driver without a GPU: starts, or says why not.
//
//   FAKE_CUDA_INIT   what cuInit answers (0)
#include <cstdlib>

namespace {
bool initialised = false;
}

extern "C" {

int cuInit(unsigned) {
  const char* const answer = std::getenv("FAKE_CUDA_INIT");
  const int error = answer != nullptr ? std::atoi(answer) : 0;
  initialised = initialised || error == 0;
  return error;
}

int cuDeviceGetCount(int* count) {
  *count = initialised ? 1 : 0;
  return initialised ? 0 : 3;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : "a fake error";
  return 0;
}
}

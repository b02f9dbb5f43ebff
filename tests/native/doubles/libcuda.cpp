// A driver without a GPU: starts, or says why not.
//
//   FAKE_CUDA_INIT   what cuInit answers (0)
#include <cstdlib>

extern "C" {

int cuInit(unsigned) {
  const char* const answer = std::getenv("FAKE_CUDA_INIT");
  return answer != nullptr ? std::atoi(answer) : 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == 100 ? "no CUDA-capable device is detected" : "a fake error";
  return 0;
}
}

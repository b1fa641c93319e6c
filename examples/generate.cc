// Continues a text with any model folder, softmax or linear.
// usage: generate MODEL PROMPT
#include <cstdio>
#include <exception>

#include <dofla/checkpoint/tokenizer.h>
#include <dofla/generate/generate.h>
#include <dofla/linear/linear_model.h>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: generate MODEL PROMPT\n", stderr);
    return 2;
  }
  try {
    const dofla::Checkpoint checkpoint(argv[1]);
    const dofla::Tokenizer tokenizer = dofla::Tokenizer::load(checkpoint.folder());
    const dofla::Transformer model = dofla::load_model(checkpoint);
    dofla::GenerateOptions options;
    options.max_tokens = 20;
    options.sampler.temperature = 0;
    const dofla::Generation text = dofla::generate(model, tokenizer.encode(argv[2]), options);
    std::printf("%s%s\n", argv[2], tokenizer.decode(text.ids).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}

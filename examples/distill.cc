// Turns a softmax model into a linear-attention model:
//   distill MODEL TEXT NEW_FOLDER [STEPS]
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <dofla/pipeline.h>
#include <dofla/pipeline/student.h>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: distill MODEL TEXT NEW_FOLDER [STEPS]\n");
    return 2;
  }
  try {
    const dofla::Checkpoint teacher(argv[1]);
    const dofla::DistillText text = dofla::split_held_out(
        dofla::read_windows(teacher, {.files = {argv[2]}, .length = 64, .most = 48}), 8);

    dofla::DistillOptions options;
    options.plan = dofla::AllocateOptions{.cost = 16};
    options.dof = dofla::DofOptions{.samples = 256};
    options.recipe = dofla::make_recipe({.steps = argc > 4 ? std::atoi(argv[4]) : 40});
    const dofla::Distilled result = dofla::distill(teacher, text, options);
    dofla::write_student(argv[3], teacher, result);
    std::printf("teacher %.3f, student %.3f nats a token\n", result.comparison.teacher_loss,
                result.comparison.loss);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distill: %s\n", error.what());
    return 1;
  }
}

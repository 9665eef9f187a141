/* arch_list.h: one builder an architecture (models/arch.h says how they work). */
#ifndef LAC_MODELS_ARCH_LIST_H
#define LAC_MODELS_ARCH_LIST_H

#include "models/arch.h"

/* X(general.architecture, builder) */
#define ARCH_LIST(X)                                                                               \
    X("llama", arch_llama)                                                                         \
    X("qwen2", arch_qwen2)                                                                         \
    X("qwen3", arch_qwen3)                                                                         \
    X("qwen3moe", arch_qwen3)                                                                      \
    X("gemma2", arch_gemma2)                                                                       \
    X("gemma3", arch_gemma3)                                                                       \
    X("phi3", arch_phi3)                                                                           \
    X("granite", arch_granite)                                                                     \
    X("smollm3", arch_smollm3)                                                                     \
    X("olmo2", arch_olmo2)

void arch_llama(struct arch_builder *b);
void arch_qwen2(struct arch_builder *b);
void arch_qwen3(struct arch_builder *b);
void arch_gemma2(struct arch_builder *b);
void arch_gemma3(struct arch_builder *b);
void arch_phi3(struct arch_builder *b);
void arch_granite(struct arch_builder *b);
void arch_smollm3(struct arch_builder *b);
void arch_olmo2(struct arch_builder *b);

#endif

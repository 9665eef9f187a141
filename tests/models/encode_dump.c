/* encode_dump FOLDER [ISA]: texts on stdin, each behind its length as uint32; on stdout for each
 * the number of tokens as uint32 and the vector as F32. A test tool for
 * tests/models/compare_encoder.py; exit 2 on bad usage, 1 when something fails. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/encoder.h"

static int encode_all(const struct encoder *enc) {
    uint32_t len, n_tokens;
    float *out = malloc(encoder_dim(enc) * sizeof *out);
    while (out != NULL && fread(&len, sizeof len, 1, stdin) == 1) {
        struct error e = {0};
        char *text = malloc(len + 1u);
        if (text == NULL || fread(text, 1, len, stdin) != len) return 1;
        if (encoder_encode(enc, NULL, text, len, out, &n_tokens, &e) != STATUS_OK) {
            fprintf(stderr, "%s: %s\n", e.field, e.message);
            return 1;
        }
        free(text);
        if (fwrite(&n_tokens, sizeof n_tokens, 1, stdout) != 1 ||
            fwrite(out, sizeof *out, encoder_dim(enc), stdout) != encoder_dim(enc))
            return 1;
    }
    free(out);
    return ferror(stdin) || fflush(stdout) != 0;
}

int main(int argc, char **argv) {
    enum cpu_isa isa = CPU_ISA_SCALAR;
    if (argc < 2 || argc > 3 || (argc == 3 && !cpu_isa_parse(argv[2], &isa))) {
        fprintf(stderr, "usage: encode_dump FOLDER [ISA]\n");
        return 2;
    }
    struct encoder *enc;
    struct error e = {0};
    if (encoder_open(argv[1], &enc, &e) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", e.field, e.message);
        return 1;
    }
    if (argc == 3) encoder_use_isa(enc, isa);
    const int rc = encode_all(enc);
    encoder_close(enc);
    return rc;
}

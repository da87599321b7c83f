/* Writes a stage dump (docs/dump-format.md, directory form) from C99, C++, CUDA or Objective-C. No dependencies; include it where it is used.
 *
 *     stage_dump d;
 *     if (stage_dump_open(&d, "run", "{\"family\": \"qwen3\"}", "{\"candidate\": \"my-engine\"}")) { puts(d.error); return 1; }
 *     int64_t shape[3] = {rows, heads, dim};
 *     stage_dump_announce(&d, "draft.L3.q_rope");
 *     stage_dump_put(&d, step, "draft.L3.q_rope", row0, "f32", 3, shape, NULL, NULL, q);
 *     stage_dump_close(&d);
 *
 * Every function returns 0, or -1 with the reason in `error`. Data is host memory in the stored dtype. One dump belongs to one thread at a time. A
 * process that dies leaves a valid prefix: each record is written under a temporary name, renamed, and only then named in the manifest.
 */
#ifndef DFLASH_STAGE_DUMP_H
#define DFLASH_STAGE_DUMP_H

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "stage_dump.h writes elements as they lie in memory and needs a little-endian host"
#endif

#if defined(__GNUC__) || defined(__clang__)
#define STAGE_DUMP_FN static __attribute__((unused))
#define STAGE_DUMP_PRINTF __attribute__((format(printf, 2, 3)))
#else
#define STAGE_DUMP_FN static
#define STAGE_DUMP_PRINTF
#endif

#define STAGE_DUMP_MAX_STAGE 200
#define STAGE_DUMP_MAX_NDIM 8

typedef struct stage_dump {
    FILE *manifest;
    FILE *current;
    char directory[2048];
    int64_t files;   /* names taken */
    int64_t records; /* lines written */
    char error[4096];
} stage_dump;

STAGE_DUMP_PRINTF STAGE_DUMP_FN int stage_dump_fail(stage_dump *d, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->error, sizeof d->error, format, arguments);
    va_end(arguments);
    return -1;
}

/* The .npy element type of `dtype` and its size in bytes; NULL when there is none. */
STAGE_DUMP_FN const char *stage_dump_descr(const char *dtype, size_t *size) {
    static const struct { const char *name, *descr; size_t size; } known[] = {
        {"f64", "<f8", 8}, {"f32", "<f4", 4}, {"f16", "<f2", 2}, {"bf16", "<u2", 2}, {"i64", "<i8", 8}, {"i32", "<i4", 4}, {"u8", "|u1", 1},
    };
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++)
        if (dtype && !strcmp(dtype, known[i].name)) {
            *size = known[i].size;
            return known[i].descr;
        }
    return NULL;
}

STAGE_DUMP_FN int stage_dump_check_stage(stage_dump *d, const char *stage) {
    int characters = 0;
    const unsigned char *c;
    if (!d->manifest) return stage_dump_fail(d, "the dump is not open");
    for (c = (const unsigned char *)(stage ? stage : ""); *c; c++) {
        if (*c < 0x20 || *c == 0x7f) return stage_dump_fail(d, "a stage name holds the control character 0x%02x", *c);
        characters += (*c & 0xc0) != 0x80;
    }
    if (characters < 1 || characters > STAGE_DUMP_MAX_STAGE)
        return stage_dump_fail(d, "expected a stage name of 1 to %d characters, found %d", STAGE_DUMP_MAX_STAGE, characters);
    return 0;
}

/* Starts the dump `directory` (created if absent); `case_json` and `provenance_json` are JSON objects. Refuses a directory that holds a dump. */
STAGE_DUMP_FN int stage_dump_open(stage_dump *d, const char *directory, const char *case_json, const char *provenance_json) {
    char path[2200];
    const char *parts[2], *c;
    int i;
    memset(d, 0, sizeof *d);
    parts[0] = case_json;
    parts[1] = provenance_json;
    if (!directory || strlen(directory) >= sizeof d->directory) return stage_dump_fail(d, "the directory's name is absent or too long");
    for (i = 0; i < 2; i++)
        if (!parts[i] || parts[i][strspn(parts[i], " \t\r\n")] != '{')
            return stage_dump_fail(d, "expected %s to be a JSON object", i ? "provenance" : "case");
    strcpy(d->directory, directory);
    if (mkdir(directory, 0777) && errno != EEXIST) return stage_dump_fail(d, "%s: cannot be made: %s", directory, strerror(errno));
    snprintf(path, sizeof path, "%s/manifest.jsonl", directory);
    d->manifest = fopen(path, "rb");
    if (d->manifest) {
        fclose(d->manifest);
        d->manifest = NULL;
        return stage_dump_fail(d, "%s: holds a dump already; remove it or choose another name", directory);
    }
    d->manifest = fopen(path, "wb");
    if (!d->manifest) return stage_dump_fail(d, "%s: cannot be written: %s", path, strerror(errno));
    fputs("{\"format\":\"dflash-stage-dump\",\"version\":1,\"case\":", d->manifest);
    for (i = 0; i < 2; i++) {
        /* Outside strings a line break is white space, and inside them JSON forbids it. */
        for (c = parts[i]; *c; c++) fputc(*c == '\n' || *c == '\r' ? ' ' : *c, d->manifest);
        fputs(i ? "}\n" : ",\"provenance\":", d->manifest);
    }
    if (fflush(d->manifest) || ferror(d->manifest)) return stage_dump_fail(d, "%s: cannot be written: %s", path, strerror(errno));
    return 0;
}

/* Notes that `stage` is about to run, so that a crash can be located. */
STAGE_DUMP_FN int stage_dump_announce(stage_dump *d, const char *stage) {
    char text[4 * STAGE_DUMP_MAX_STAGE + 2];
    size_t length;
    if (stage_dump_check_stage(d, stage)) return -1;
    if (!d->current) {
        char path[2200];
        snprintf(path, sizeof path, "%s/current", d->directory);
        d->current = fopen(path, "wb");
        if (!d->current) return stage_dump_fail(d, "%s: cannot be written: %s", path, strerror(errno));
        setvbuf(d->current, NULL, _IONBF, 0);
    }
    length = (size_t)snprintf(text, sizeof text, "%s\n", stage);
    rewind(d->current);
    if (fwrite(text, 1, length, d->current) != length) return stage_dump_fail(d, "current: cannot be written: %s", strerror(errno));
    return 0;
}

/* Elements of axes `axis`.. in C order; `strides` count elements. */
STAGE_DUMP_FN void stage_dump_elements(
    FILE *file, const unsigned char *data, size_t size, int ndim, const int64_t *shape, const int64_t *strides, int axis) {
    int64_t i;
    if (axis == ndim - 1 && strides[axis] == 1) {
        fwrite(data, size, (size_t)shape[axis], file);
        return;
    }
    for (i = 0; i < shape[axis]; i++) {
        const unsigned char *item = data + i * strides[axis] * (int64_t)size;
        if (axis == ndim - 1)
            fwrite(item, size, 1, file);
        else
            stage_dump_elements(file, item, size, ndim, shape, strides, axis + 1);
    }
}

STAGE_DUMP_FN int stage_dump_write_npy(
    const char *path, const char *descr, size_t size, int ndim, const int64_t *shape, const int64_t *strides, const void *data) {
    char header[512];
    int used, axis, total;
    int64_t count = 1;
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    used = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (axis = 0; axis < ndim; axis++) {
        used += snprintf(header + used, sizeof header - (size_t)used, "%" PRId64 ",", shape[axis]);
        count *= shape[axis];
    }
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    total = (10 + used + 1 + 63) / 64 * 64; /* the elements start at a multiple of 64 bytes */
    memset(header + used, ' ', (size_t)(total - 10 - used));
    header[total - 11] = '\n';
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fputc((total - 10) & 0xff, file);
    fputc((total - 10) >> 8, file);
    fwrite(header, 1, (size_t)(total - 10), file);
    if (count) stage_dump_elements(file, (const unsigned char *)data, size, ndim, shape, strides, 0);
    used = ferror(file);
    return fclose(file) || used ? -1 : 0;
}

STAGE_DUMP_FN void stage_dump_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

/* Records rows `row0`.. of `stage` in `step`: `ndim` sizes in `shape`, rows first. `strides` counts elements (NULL: contiguous);
 * `axes` names the axes (NULL: unnamed). `dtype`: f64 f32 f16 bf16 i64 i32 u8. */
STAGE_DUMP_FN int stage_dump_put(stage_dump *d, int32_t step, const char *stage, int64_t row0, const char *dtype, int ndim,
                                 const int64_t *shape, const int64_t *strides, const char *const *axes, const void *data) {
    char name[128], path[2200], part[2208];
    int64_t contiguous[STAGE_DUMP_MAX_NDIM], count = 1;
    size_t size = 0, used;
    const char *descr = stage_dump_descr(dtype, &size), *c;
    int axis;
    if (stage_dump_check_stage(d, stage)) return -1;
    if (!descr) return stage_dump_fail(d, "%s: unknown dtype %s", stage, dtype ? dtype : "NULL");
    if (step < 0 || row0 < 0) return stage_dump_fail(d, "%s: expected step and row0 from 0, found %" PRId32 " and %" PRId64, stage, step, row0);
    if (ndim < 1 || ndim > STAGE_DUMP_MAX_NDIM || !shape)
        return stage_dump_fail(d, "%s: expected 1 to %d sizes, rows first, found %d", stage, STAGE_DUMP_MAX_NDIM, ndim);
    for (axis = ndim - 1; axis >= 0; axis--) {
        if (shape[axis] < 0 || (shape[axis] && count > INT64_C(70368744177664) / shape[axis]))
            return stage_dump_fail(d, "%s: size %" PRId64 " of axis %d is out of range", stage, shape[axis], axis);
        contiguous[axis] = count;
        count *= shape[axis];
    }
    if (count && !data) return stage_dump_fail(d, "%s: expected data, found NULL", stage);

    used = (size_t)snprintf(name, sizeof name, "%06" PRId64 "-", d->files++);
    for (c = stage; *c && used < 100; c++) {
        int safe = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.' || *c == '-';
        name[used++] = safe ? *c : '_';
    }
    strcpy(name + used, ".npy");
    snprintf(path, sizeof path, "%s/%s", d->directory, name);
    snprintf(part, sizeof part, "%s.part", path);
    if (stage_dump_write_npy(part, descr, size, ndim, shape, strides ? strides : contiguous, data) || rename(part, path)) {
        stage_dump_fail(d, "%s: %s cannot be written: %s", path, stage, strerror(errno));
        remove(part);
        return -1;
    }

    fprintf(d->manifest, "{\"step\":%" PRId32 ",\"stage\":", step);
    stage_dump_string(d->manifest, stage);
    fprintf(d->manifest, ",\"row0\":%" PRId64 ",\"dtype\":\"%s\",\"shape\":[", row0, dtype);
    for (axis = 0; axis < ndim; axis++) fprintf(d->manifest, "%s%" PRId64, axis ? "," : "", shape[axis]);
    fprintf(d->manifest, "],\"file\":\"%s\"", name);
    for (axis = 0; axes && axis < ndim; axis++) {
        fputs(axis ? "," : ",\"axes\":[", d->manifest);
        stage_dump_string(d->manifest, axes[axis]);
    }
    fputs(axes ? "]}\n" : "}\n", d->manifest);
    if (fflush(d->manifest) || ferror(d->manifest)) return stage_dump_fail(d, "manifest.jsonl: cannot be written: %s", strerror(errno));
    d->records++;
    return 0;
}

/* Ends the dump and says that it is complete. (Without it the dump is a valid, incomplete one.) */
STAGE_DUMP_FN int stage_dump_close(stage_dump *d) {
    int failed;
    if (!d->manifest) return stage_dump_fail(d, "the dump is not open");
    fprintf(d->manifest, "{\"end\":true,\"records\":%" PRId64 "}\n", d->records);
    failed = ferror(d->manifest);
    failed |= fclose(d->manifest);
    d->manifest = NULL;
    if (d->current) {
        char path[2200];
        snprintf(path, sizeof path, "%s/current", d->directory);
        fclose(d->current);
        d->current = NULL;
        remove(path);
    }
    return failed ? stage_dump_fail(d, "manifest.jsonl: cannot be written: %s", strerror(errno)) : 0;
}

#endif

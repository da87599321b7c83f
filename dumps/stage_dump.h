/* Writes a stage dump (docs/dump-format.md, directory form) from C99, C++, CUDA or Objective-C. No dependencies; include it where it is used.
 *
 *     stage_dump d;
 *     if (stage_dump_open(&d, "run", "{\"family\": \"qwen3\"}", "{\"candidate\": \"my-engine\"}")) { puts(d.error); return 1; }
 *     int64_t shape[3] = {rows, heads, dim};
 *     stage_dump_announce(&d, "draft.L3.q_rope");
 *     stage_dump_put(&d, step, "draft.L3.q_rope", row0, "f32", 3, shape, NULL, NULL, q);
 *     stage_dump_close(&d);
 *
 * Every function returns 0, or -1 with the reason in `error`. Data is host memory in the stored dtype. `put` and `announce` may be called from several
 * threads at once (`error` is then the last one's). A process that dies leaves a valid prefix: each record is written under a temporary name,
 * renamed, and only then named in the manifest.
 *
 * To leave the calls in a shipped engine, open with `stage_dump_open_env`: without STAGE_DUMP_DIR in the environment the dump is disabled, and every
 * later call returns at once. `stage_dump_wants` tells whether a stage will be recorded, before it is copied from a device. STAGE_DUMP_STAGES
 * (globs, "draft.L3.*,draft.logits") and STAGE_DUMP_STEPS ("0-3,7") choose what is recorded; the dump says so in its provenance.
 *
 * For other languages, compile one C file that defines STAGE_DUMP_FN as nothing before it includes this header: its functions are then exported.
 */
#ifndef DFLASH_STAGE_DUMP_H
#define DFLASH_STAGE_DUMP_H

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "stage_dump.h writes elements as they lie in memory and needs a little-endian host"
#endif

#ifndef STAGE_DUMP_FN
#if defined(__GNUC__) || defined(__clang__)
#define STAGE_DUMP_FN static __attribute__((unused))
#else
#define STAGE_DUMP_FN static
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define STAGE_DUMP_PRINTF __attribute__((format(printf, 2, 3)))
#else
#define STAGE_DUMP_PRINTF
#endif

#define STAGE_DUMP_MAX_STAGE 200
#define STAGE_DUMP_MAX_NDIM 8
#define STAGE_DUMP_MAX_FILTER 1024

typedef struct stage_dump {
    pthread_mutex_t writing;  /* guards manifest, current, files, records */
    pthread_mutex_t failing;  /* guards error */
    FILE *manifest;
    FILE *current;
    char directory[2048];
    int64_t files;    /* names taken */
    int64_t records;  /* lines written */
    int32_t disabled; /* every call returns 0 and does nothing */
    char stages[STAGE_DUMP_MAX_FILTER]; /* globs, separated by commas; empty: all */
    char steps[STAGE_DUMP_MAX_FILTER];  /* "0-3,7"; empty: all */
    char error[4096];
} stage_dump;

STAGE_DUMP_PRINTF STAGE_DUMP_FN int stage_dump_fail(stage_dump *d, const char *format, ...) {
    va_list arguments;
    if (d->manifest) pthread_mutex_lock(&d->failing);
    va_start(arguments, format);
    vsnprintf(d->error, sizeof d->error, format, arguments);
    va_end(arguments);
    if (d->manifest) pthread_mutex_unlock(&d->failing);
    return -1;
}

/* The .npy element type of `dtype` and its size in bytes; NULL when there is none. */
STAGE_DUMP_FN const char *stage_dump_descr(const char *dtype, size_t *size) {
    static const struct { const char *name, *descr; size_t size; } known[] = {
        {"f64", "<f8", 8}, {"f32", "<f4", 4}, {"f16", "<f2", 2}, {"bf16", "<u2", 2}, {"i64", "<i8", 8}, {"i32", "<i4", 4}, {"u8", "|u1", 1},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (dtype && !strcmp(dtype, known[i].name)) {
            *size = known[i].size;
            return known[i].descr;
        }
    return NULL;
}

STAGE_DUMP_FN int stage_dump_check_stage(stage_dump *d, const char *stage) {
    int characters = 0;
    if (!d->manifest) return stage_dump_fail(d, "the dump is not open");
    for (const unsigned char *c = (const unsigned char *)(stage ? stage : ""); *c; c++) {
        if (*c < 0x20 || *c == 0x7f) return stage_dump_fail(d, "a stage name holds the control character 0x%02x", *c);
        characters += (*c & 0xc0) != 0x80;
    }
    if (characters < 1 || characters > STAGE_DUMP_MAX_STAGE)
        return stage_dump_fail(d, "expected a stage name of 1 to %d characters, found %d", STAGE_DUMP_MAX_STAGE, characters);
    return 0;
}

/* Does the glob from `glob` to `end` (`*`, `?`) match the whole of `text`? */
STAGE_DUMP_FN int stage_dump_match(const char *glob, const char *end, const char *text) {
    const char *star = NULL, *retry = NULL;
    while (*text) {
        if (glob < end && *glob == '*') {
            star = ++glob;
            retry = text;
        } else if (glob < end && (*glob == '?' || *glob == *text)) {
            glob++;
            text++;
        } else if (star) {
            glob = star;
            text = ++retry;
        } else {
            return 0;
        }
    }
    while (glob < end && *glob == '*') glob++;
    return glob == end;
}

/* Is `step` in a list such as "0-3,7"? -1: it is not such a list. */
STAGE_DUMP_FN int stage_dump_in_steps(const char *steps, int32_t step) {
    int found = 0;
    for (;;) {
        char *end;
        long first = strtol(steps, &end, 10), last = first;
        if (end == steps || *steps < '0' || *steps > '9') return -1;
        if (*end == '-') {
            steps = end + 1;
            last = strtol(steps, &end, 10);
            if (end == steps || *steps < '0' || *steps > '9') return -1;
        }
        if (last < first || (*end && *end != ',')) return -1;
        found |= step >= first && step <= last;
        if (!*end) return found;
        steps = end + 1;
    }
}

/* Will `stage` of `step` be recorded? 0 when the dump is disabled or its filters leave it out: then it need not be copied from a device. */
STAGE_DUMP_FN int stage_dump_wants(const stage_dump *d, int32_t step, const char *stage) {
    const char *glob = d->stages, *end;
    if (d->disabled || (d->steps[0] && stage_dump_in_steps(d->steps, step) != 1)) return 0;
    if (!*glob) return 1;
    for (;; glob = end + 1) {
        end = glob + strcspn(glob, ",");
        if (stage && stage_dump_match(glob, end, stage)) return 1;
        if (!*end) return 0;
    }
}

STAGE_DUMP_FN void stage_dump_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

/* A JSON object on one line: outside strings a line break is white space, and inside them JSON forbids it. */
STAGE_DUMP_FN void stage_dump_object(FILE *out, const char *json) {
    for (; *json; json++) fputc(*json == '\n' || *json == '\r' ? ' ' : *json, out);
}

STAGE_DUMP_FN void stage_dump_header(const stage_dump *d, const char *case_json, const char *provenance_json) {
    fputs("{\"format\":\"dflash-stage-dump\",\"version\":1,\"case\":", d->manifest);
    stage_dump_object(d->manifest, case_json);
    fputs(",\"provenance\":", d->manifest);
    if (d->stages[0] || d->steps[0]) {
        provenance_json += strspn(provenance_json, " \t\r\n") + 1; /* behind its brace */
        fputs("{\"stage_dump\":{\"stages\":", d->manifest);
        stage_dump_string(d->manifest, d->stages);
        fputs(",\"steps\":", d->manifest);
        stage_dump_string(d->manifest, d->steps);
        fputs(provenance_json[strspn(provenance_json, " \t\r\n")] == '}' ? "}" : "},", d->manifest);
    }
    stage_dump_object(d->manifest, provenance_json);
    fputs("}\n", d->manifest);
}

STAGE_DUMP_FN int stage_dump_filter(stage_dump *d, char *kept, const char *name, const char *filter) {
    if (!filter) return 0;
    if (strlen(filter) >= STAGE_DUMP_MAX_FILTER)
        return stage_dump_fail(d, "expected %s of fewer than %d characters", name, STAGE_DUMP_MAX_FILTER);
    for (const char *c = filter; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return stage_dump_fail(d, "%s holds the control character 0x%02x", name, (unsigned)*c);
    strcpy(kept, filter);
    return 0;
}

/* Starts the dump `directory` (created if absent); `case_json` and `provenance_json` are JSON objects. `stages`, `steps`: what is recorded
 * (NULL or empty: all). Refuses a directory that holds a dump. */
STAGE_DUMP_FN int stage_dump_open_filtered(stage_dump *d, const char *directory, const char *case_json, const char *provenance_json,
                                           const char *stages, const char *steps) {
    char path[2200];
    const char *parts[2] = {case_json, provenance_json};
    memset(d, 0, sizeof *d);
    pthread_mutex_init(&d->writing, NULL);
    pthread_mutex_init(&d->failing, NULL);
    if (!directory || strlen(directory) >= sizeof d->directory) return stage_dump_fail(d, "the directory's name is absent or too long");
    for (int i = 0; i < 2; i++)
        if (!parts[i] || parts[i][strspn(parts[i], " \t\r\n")] != '{')
            return stage_dump_fail(d, "expected %s to be a JSON object", i ? "provenance" : "case");
    if (stage_dump_filter(d, d->stages, "STAGE_DUMP_STAGES", stages) || stage_dump_filter(d, d->steps, "STAGE_DUMP_STEPS", steps)) return -1;
    if (d->steps[0] && stage_dump_in_steps(d->steps, 0) < 0)
        return stage_dump_fail(d, "expected STAGE_DUMP_STEPS such as 0-3,7, found %s", d->steps);
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
    stage_dump_header(d, case_json, provenance_json);
    if (fflush(d->manifest) || ferror(d->manifest)) return stage_dump_fail(d, "%s: cannot be written: %s", path, strerror(errno));
    return 0;
}

STAGE_DUMP_FN int stage_dump_open(stage_dump *d, const char *directory, const char *case_json, const char *provenance_json) {
    return stage_dump_open_filtered(d, directory, case_json, provenance_json, NULL, NULL);
}

/* As the environment says: STAGE_DUMP_DIR (absent: disabled), STAGE_DUMP_STAGES, STAGE_DUMP_STEPS. */
STAGE_DUMP_FN int stage_dump_open_env(stage_dump *d, const char *case_json, const char *provenance_json) {
    const char *directory = getenv("STAGE_DUMP_DIR");
    if (!directory || !*directory) {
        memset(d, 0, sizeof *d);
        d->disabled = 1;
        return 0;
    }
    return stage_dump_open_filtered(d, directory, case_json, provenance_json, getenv("STAGE_DUMP_STAGES"), getenv("STAGE_DUMP_STEPS"));
}

STAGE_DUMP_FN int stage_dump_current(stage_dump *d, const char *stage) {
    char text[4 * STAGE_DUMP_MAX_STAGE + 2];
    size_t length = (size_t)snprintf(text, sizeof text, "%s\n", stage);
    if (!d->current) {
        char path[2200];
        snprintf(path, sizeof path, "%s/current", d->directory);
        d->current = fopen(path, "wb");
        if (!d->current) return stage_dump_fail(d, "%s: cannot be written: %s", path, strerror(errno));
        setvbuf(d->current, NULL, _IONBF, 0);
    }
    rewind(d->current);
    if (fwrite(text, 1, length, d->current) != length) return stage_dump_fail(d, "current: cannot be written: %s", strerror(errno));
    return 0;
}

/* Notes that `stage` is about to run, so that a crash can be located. */
STAGE_DUMP_FN int stage_dump_announce(stage_dump *d, const char *stage) {
    if (d->disabled) return 0;
    if (stage_dump_check_stage(d, stage)) return -1;
    pthread_mutex_lock(&d->writing);
    const int failed = stage_dump_current(d, stage);
    pthread_mutex_unlock(&d->writing);
    return failed;
}

/* Elements of axes `axis`.. in C order; `strides` count elements. */
STAGE_DUMP_FN void stage_dump_elements(
    FILE *file, const unsigned char *data, size_t size, int ndim, const int64_t *shape, const int64_t *strides, int axis) {
    if (axis == ndim - 1 && strides[axis] == 1) {
        fwrite(data, size, (size_t)shape[axis], file);
        return;
    }
    for (int64_t i = 0; i < shape[axis]; i++) {
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
    int used, total;
    int64_t count = 1;
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    used = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int axis = 0; axis < ndim; axis++) {
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

/* The record's line, whole: the lock is held. */
STAGE_DUMP_FN int stage_dump_line(stage_dump *d, int32_t step, const char *stage, int64_t row0, const char *dtype, int ndim,
                                  const int64_t *shape, const char *const *axes, const char *name) {
    fprintf(d->manifest, "{\"step\":%" PRId32 ",\"stage\":", step);
    stage_dump_string(d->manifest, stage);
    fprintf(d->manifest, ",\"row0\":%" PRId64 ",\"dtype\":\"%s\",\"shape\":[", row0, dtype);
    for (int axis = 0; axis < ndim; axis++) fprintf(d->manifest, "%s%" PRId64, axis ? "," : "", shape[axis]);
    fprintf(d->manifest, "],\"file\":\"%s\"", name);
    for (int axis = 0; axes && axis < ndim; axis++) {
        fputs(axis ? "," : ",\"axes\":[", d->manifest);
        stage_dump_string(d->manifest, axes[axis]);
    }
    fputs(axes ? "]}\n" : "}\n", d->manifest);
    if (fflush(d->manifest) || ferror(d->manifest)) return stage_dump_fail(d, "manifest.jsonl: cannot be written: %s", strerror(errno));
    d->records++;
    return 0;
}

/* A file name that no other record of the dump has. */
STAGE_DUMP_FN void stage_dump_name(stage_dump *d, const char *stage, char name[128]) {
    pthread_mutex_lock(&d->writing);
    size_t used = (size_t)snprintf(name, 128, "%06" PRId64 "-", d->files++);
    pthread_mutex_unlock(&d->writing);
    for (; *stage && used < 100; stage++) {
        char c = *stage;
        int safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
        name[used++] = safe ? c : '_';
    }
    strcpy(name + used, ".npy");
}

/* Records rows `row0`.. of `stage` in `step`: `ndim` sizes in `shape`, rows first. `strides` counts elements (NULL: contiguous);
 * `axes` names the axes (NULL: unnamed). `dtype`: f64 f32 f16 bf16 i64 i32 u8. */
STAGE_DUMP_FN int stage_dump_put(stage_dump *d, int32_t step, const char *stage, int64_t row0, const char *dtype, int ndim,
                                 const int64_t *shape, const int64_t *strides, const char *const *axes, const void *data) {
    char name[128], path[2200], part[2208];
    int64_t contiguous[STAGE_DUMP_MAX_NDIM], count = 1;
    size_t size = 0;
    const char *descr;
    if (d->disabled) return 0;
    descr = stage_dump_descr(dtype, &size);
    if (stage_dump_check_stage(d, stage)) return -1;
    if (!descr) return stage_dump_fail(d, "%s: unknown dtype %s", stage, dtype ? dtype : "NULL");
    if (step < 0 || row0 < 0) return stage_dump_fail(d, "%s: expected step and row0 from 0, found %" PRId32 " and %" PRId64, stage, step, row0);
    if (ndim < 1 || ndim > STAGE_DUMP_MAX_NDIM || !shape)
        return stage_dump_fail(d, "%s: expected 1 to %d sizes, rows first, found %d", stage, STAGE_DUMP_MAX_NDIM, ndim);
    for (int axis = ndim - 1; axis >= 0; axis--) {
        if (shape[axis] < 0 || (shape[axis] && count > INT64_C(70368744177664) / shape[axis]))
            return stage_dump_fail(d, "%s: size %" PRId64 " of axis %d is out of range", stage, shape[axis], axis);
        contiguous[axis] = count;
        count *= shape[axis];
    }
    if (count && !data) return stage_dump_fail(d, "%s: expected data, found NULL", stage);
    if (!stage_dump_wants(d, step, stage)) return 0;

    stage_dump_name(d, stage, name);
    snprintf(path, sizeof path, "%s/%s", d->directory, name);
    snprintf(part, sizeof part, "%s.part", path);
    if (stage_dump_write_npy(part, descr, size, ndim, shape, strides ? strides : contiguous, data) || rename(part, path)) {
        stage_dump_fail(d, "%s: %s cannot be written: %s", path, stage, strerror(errno));
        remove(part);
        return -1;
    }
    pthread_mutex_lock(&d->writing);
    const int failed = stage_dump_line(d, step, stage, row0, dtype, ndim, shape, axes, name);
    pthread_mutex_unlock(&d->writing);
    return failed;
}

/* Ends the dump and says that it is complete, after the last `put` of every thread. (Without it the dump is a valid, incomplete one.) */
STAGE_DUMP_FN int stage_dump_close(stage_dump *d) {
    int failed;
    if (d->disabled) return 0;
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

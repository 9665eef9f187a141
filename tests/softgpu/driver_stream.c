#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/softgpu/driver.h"

enum cu_result soft_stream_create_with_priority(struct cu_stream **out, unsigned flags,
                                                int priority) {
    soft_lock();
    enum cu_result r = soft_enter("cuStreamCreateWithPriority", true);
    (void)priority; /* out of range is clamped */
    if (r == CUDA_SUCCESS && flags > CU_STREAM_NON_BLOCKING) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        struct stream *s = soft_alloc(sizeof *s);
        s->blocking = flags != CU_STREAM_NON_BLOCKING;
        s->handle = handle_new(HANDLE_STREAM, s);
        struct stream **end = &soft.streams;
        while (*end != NULL) end = &(*end)->next;
        *end = s;
        *out = s->handle;
    }
    soft_unlock();
    return r;
}

void stream_free(struct stream *s) {
    work_release(s->tail);
    for (uint32_t i = 0; i < s->n_waits; i++) work_release(s->waits[i].work);
    free(s->waits);
    free(s);
}

/* Its work goes on and is waited for by nobody; only the name is gone. */
enum cu_result soft_stream_destroy(struct cu_stream *stream) {
    soft_lock();
    enum cu_result r = soft_enter("cuStreamDestroy", true);
    struct stream *s =
        r == CUDA_SUCCESS ? handle_get(HANDLE_STREAM, stream, "cuStreamDestroy") : NULL;
    if (r == CUDA_SUCCESS && s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        handle_end(stream);
        for (struct stream **p = &soft.streams; *p != NULL; p = &(*p)->next) {
            if (*p != s) continue;
            *p = s->next;
            break;
        }
        stream_free(s);
    }
    soft_unlock();
    return r;
}

/* The newest of what `s` holds, events waited for included, with a reference; NULL when the host
 * knows all of it to be done. */
static struct work *newest_of(struct stream *s) {
    if (s->n_waits > 0) {
        struct work *join = work_new(WORK_JOIN);
        stream_push(s, join, false);
        work_release(join);
    }
    if (s->tail == NULL || s->tail->observed_at != 0) return NULL;
    work_retain(s->tail);
    return s->tail;
}

/* run and lock are held. Uses up the reference. */
static enum cu_result wait_for(struct work *o) {
    if (o == NULL) return CUDA_SUCCESS;
    work_run_until(o);
    if (soft.lost == CUDA_SUCCESS) work_observe(o);
    work_release(o);
    return soft.lost;
}

enum cu_result soft_stream_synchronize(struct cu_stream *stream) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuStreamSynchronize", true);
    struct stream *s = r == CUDA_SUCCESS ? stream_get(stream, "cuStreamSynchronize") : NULL;
    if (r == CUDA_SUCCESS && s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        r = wait_for(newest_of(s));
    }
    soft_run_unlock();
    return r;
}

/* Progress, and the answer: polling must come to an end. lock is held, and run if `runs`. Uses up
 * the reference. */
static enum cu_result query(struct work *o, bool runs) {
    if (o == NULL) return CUDA_SUCCESS;
    if (runs) work_run_some(o);
    enum cu_result r = o->done ? soft.lost : CUDA_ERROR_NOT_READY;
    if (r == CUDA_SUCCESS) work_observe(o);
    if (soft.lost != CUDA_SUCCESS) r = soft.lost;
    work_release(o);
    return r;
}

enum cu_result soft_stream_query(struct cu_stream *stream) {
    const bool runs = pthread_mutex_trylock(&soft.run) == 0;
    soft_lock();
    enum cu_result r = soft_enter("cuStreamQuery", true);
    struct stream *s = r == CUDA_SUCCESS ? stream_get(stream, "cuStreamQuery") : NULL;
    if (r == CUDA_SUCCESS && s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) r = query(newest_of(s), runs);
    soft_unlock();
    if (runs) pthread_mutex_unlock(&soft.run);
    return r;
}

enum cu_result soft_ctx_synchronize(void) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuCtxSynchronize", true);
    while (r == CUDA_SUCCESS && soft.works != NULL) {
        struct work *o = soft.works_last;
        while (o != NULL && o->done && o->observed_at != 0) o = o->previous;
        if (o == NULL) break;
        work_retain(o);
        r = wait_for(o);
    }
    soft_run_unlock();
    return r;
}

enum cu_result soft_stream_wait_event(struct cu_stream *stream, struct cu_event *event,
                                      unsigned flags) {
    soft_lock();
    enum cu_result r = soft_enter("cuStreamWaitEvent", true);
    if (r == CUDA_SUCCESS) {
        struct stream *s = stream_get(stream, "cuStreamWaitEvent");
        struct event *e = handle_get(HANDLE_EVENT, event, "cuStreamWaitEvent");
        if (s == NULL || e == NULL)
            r = CUDA_ERROR_INVALID_HANDLE;
        else if (flags != 0)
            r = CUDA_ERROR_INVALID_VALUE;
        else if (e->record != NULL) {
            s->waits = soft_grow(s->waits, &s->cap_waits, s->n_waits, sizeof *s->waits);
            s->waits[s->n_waits++] = (struct work_edge){e->record, false};
            work_retain(e->record);
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_event_create(struct cu_event **out, unsigned flags) {
    soft_lock();
    enum cu_result r = soft_enter("cuEventCreate", true);
    if (r == CUDA_SUCCESS) {
        struct event *e = soft_alloc(sizeof *e);
        e->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
        *out = handle_new(HANDLE_EVENT, e);
    }
    soft_unlock();
    return r;
}

static void forget_record(struct event *e) {
    if (e->record == NULL) return;
    work_release(e->record);
    e->record = NULL;
}

void event_free(struct event *e) {
    forget_record(e);
    free(e);
}

enum cu_result soft_event_destroy(struct cu_event *event) {
    soft_lock();
    enum cu_result r = soft_enter("cuEventDestroy", true);
    struct event *e = r == CUDA_SUCCESS ? handle_get(HANDLE_EVENT, event, "cuEventDestroy") : NULL;
    if (r == CUDA_SUCCESS && e == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        handle_end(event);
        event_free(e);
    }
    soft_unlock();
    return r;
}

enum cu_result soft_event_record(struct cu_event *event, struct cu_stream *stream) {
    soft_lock();
    enum cu_result r = soft_enter("cuEventRecord", true);
    if (r == CUDA_SUCCESS) {
        struct stream *s = stream_get(stream, "cuEventRecord");
        struct event *e = handle_get(HANDLE_EVENT, event, "cuEventRecord");
        if (s == NULL || e == NULL) {
            r = CUDA_ERROR_INVALID_HANDLE;
        } else {
            forget_record(e);
            e->record = work_new(WORK_RECORD);
            stream_push(s, e->record, false);
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_event_query(struct cu_event *event) {
    const bool runs = pthread_mutex_trylock(&soft.run) == 0;
    soft_lock();
    enum cu_result r = soft_enter("cuEventQuery", true);
    struct event *e = r == CUDA_SUCCESS ? handle_get(HANDLE_EVENT, event, "cuEventQuery") : NULL;
    if (r == CUDA_SUCCESS && e == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && e->record != NULL) {
        work_retain(e->record);
        r = query(e->record, runs);
    }
    soft_unlock();
    if (runs) pthread_mutex_unlock(&soft.run);
    return r;
}

enum cu_result soft_event_synchronize(struct cu_event *event) {
    soft_run_lock();
    enum cu_result r = soft_enter("cuEventSynchronize", true);
    struct event *e =
        r == CUDA_SUCCESS ? handle_get(HANDLE_EVENT, event, "cuEventSynchronize") : NULL;
    if (r == CUDA_SUCCESS && e == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && e->record != NULL) {
        work_retain(e->record);
        r = wait_for(e->record);
    }
    soft_run_unlock();
    return r;
}

/* There is no device whose clock could be read. */
enum cu_result soft_event_elapsed_time(float *milliseconds, struct cu_event *start,
                                       struct cu_event *end) {
    soft_lock();
    enum cu_result r = soft_enter("cuEventElapsedTime", true);
    if (r == CUDA_SUCCESS) {
        const struct event *a = handle_get(HANDLE_EVENT, start, "cuEventElapsedTime");
        const struct event *b = handle_get(HANDLE_EVENT, end, "cuEventElapsedTime");
        if (a == NULL || b == NULL || !a->timing || !b->timing || a->record == NULL ||
            b->record == NULL) {
            r = CUDA_ERROR_INVALID_HANDLE;
        } else if (!a->record->done || !b->record->done) {
            r = CUDA_ERROR_NOT_READY;
        } else {
            *milliseconds = 0;
            if (a != b) r = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    soft_unlock();
    return r;
}

/* Host functions are called although nobody waits: a program may learn from them that it can go
 * on. Everything they follow runs first, and nothing else. */
static void *worker(void *arg) {
    (void)arg;
    for (;;) {
        soft_lock();
        struct work *o = NULL;
        while (o == NULL) {
            for (o = soft.works; o != NULL && (o->done || o->kind != WORK_HOST); o = o->next) {
            }
            if (o == NULL) pthread_cond_wait(&soft.wake, &soft.lock);
        }
        soft_unlock();
        /* Late: whoever enqueued it gets to do something else first. */
        const struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
        soft_run_lock();
        for (o = soft.works; o != NULL && (o->done || o->kind != WORK_HOST); o = o->next) {
        }
        if (o != NULL) {
            work_retain(o);
            work_run_until(o);
            work_release(o);
        }
        soft_run_unlock();
    }
    return NULL;
}

void worker_wake(void) {
    if (!soft.worker_started) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL) != 0) abort();
        pthread_detach(thread);
        soft.worker_started = true;
    }
    pthread_cond_signal(&soft.wake);
}

enum cu_result soft_launch_host_func(struct cu_stream *stream, cu_host_function *function,
                                     void *arg) {
    soft_lock();
    enum cu_result r = soft_enter("cuLaunchHostFunc", true);
    struct stream *s = r == CUDA_SUCCESS ? stream_get(stream, "cuLaunchHostFunc") : NULL;
    if (r == CUDA_SUCCESS && s == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && function == NULL) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        struct work *o = work_new(WORK_HOST);
        o->host = (struct host_op){function, arg};
        stream_push(s, o, false);
        work_release(o);
        worker_wake();
    }
    soft_unlock();
    return r;
}

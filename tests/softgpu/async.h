/* async.h: what async.c and its decoder agree on: op.kind of mbarrier, cp.async.bulk and
 * fence operations.
 */
#ifndef LAC_TESTS_SOFTGPU_ASYNC_H
#define LAC_TESTS_SOFTGPU_ASYNC_H

enum mbarrier_kind {
    MBARRIER_INIT,
    MBARRIER_INVAL,
    MBARRIER_ARRIVE,
    MBARRIER_ARRIVE_DROP,
    MBARRIER_ARRIVE_EXPECT,
    MBARRIER_EXPECT,
    MBARRIER_TEST,
    MBARRIER_TEST_PARITY,
    MBARRIER_TRY,
    MBARRIER_TRY_PARITY,
    MBARRIER_PENDING,
    MBARRIER_COPIES,       /* cp.async.mbarrier.arrive */
    MBARRIER_COPIES_NOINC, /* .noinc */
};
enum bulk_kind { BULK_TO_SHARED, BULK_TO_GLOBAL, BULK_PREFETCH };
enum atomic_kind {
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_CAS,
    ATOMIC_EXCH,
    ATOMIC_ADD,
    ATOMIC_INC,
    ATOMIC_DEC,
    ATOMIC_MIN,
    ATOMIC_MAX,
};

#endif

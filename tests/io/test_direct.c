/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs that a GPU posts to (io/direct.h), against a stand-in for libibverbs and libmlx5: what they are
 * asked for, where the queues lie, and that nothing is left when a call fails. Nobody here has the NIC. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <errno.h>

#include "io/direct_calls.h"

#define LIMIT_S 60u /* of a test; SIGALRM ends the program */
#define DEPTH 64u

/* ---- the stand-in ---- */

/* What it makes, and what it was asked for. */
static struct {
    struct ibv_device devices[3];
    const char *names[3];
    bool is_mlx5[3];
    int count, list_errno; /* -1 devices: no list */
    unsigned lists;

    struct ibv_context context;
    struct ibv_pd pd, parent;
    struct ibv_parent_domain_init_attr allocators;
    struct ibv_cq_ex cq;
    struct ibv_qp qp;
    unsigned parents, cqs, qps; /* that live */
    struct mlx5dv_cq cq_made;
    struct mlx5dv_qp qp_made;
    uint64_t page; /* of the NIC */
    struct ibv_qp_attr modified[3];
    int masks[3];
    unsigned modifications;

    unsigned calls, fail_at; /* the call that fails, from 1 on; 0: none */
    uint32_t wqes_factor;
    bool puts_elsewhere, says_other_size, is_without_doorbell, has_wide_entries;
} nic;

/* Where the queues go. */
static unsigned char *memory;
static size_t memory_size;

static bool fails(int error)
{
    if (++nic.calls != nic.fail_at)
        return false;
    errno = error;
    return true;
}

static struct ibv_device **get_device_list(int *count_out)
{
    static struct ibv_device *list[4];

    errno = nic.list_errno;
    if (nic.count < 0)
        return NULL;
    for (int i = 0; i < nic.count; i++)
        list[i] = &nic.devices[i];
    *count_out = nic.count;
    nic.lists++;
    return list;
}

static void free_device_list(struct ibv_device **list)
{
    assert_non_null(list);
    nic.lists--;
}

static const char *get_device_name(struct ibv_device *device)
{
    return nic.names[device - nic.devices];
}

static bool is_supported(struct ibv_device *device)
{
    return nic.is_mlx5[device - nic.devices];
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context,
                                          struct ibv_parent_domain_init_attr *attributes)
{
    if (fails(EOPNOTSUPP))
        return NULL;
    assert_ptr_equal(context, &nic.context);
    assert_ptr_equal(attributes->pd, &nic.pd);
    assert_int_equal(attributes->comp_mask,
                     IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
    nic.allocators = *attributes;
    nic.parent.context = context;
    nic.parents++;
    return &nic.parent;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    assert_ptr_equal(pd, &nic.parent);
    assert_int_equal(nic.cqs + nic.qps, 0);
    nic.parents--;
    return 0;
}

static void *allocate(size_t size, size_t alignment, uint64_t kind)
{
    static unsigned char elsewhere[1 << 20] __attribute__((aligned(4096)));
    unsigned char *given;

    if (nic.puts_elsewhere && kind == MLX5DV_RES_TYPE_QP)
        return elsewhere;
    given = nic.allocators.alloc(&nic.parent, nic.allocators.pd_context, size, alignment, kind);
    if (given) {
        assert_true(given >= memory && given + size <= memory + memory_size);
        assert_int_equal((uintptr_t)given % alignment, 0);
    }
    return given;
}

static struct ibv_cq_ex *create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes,
                                   struct mlx5dv_cq_init_attr *direct)
{
    uint32_t count = attributes->cqe + 1; /* which is a power of two already */

    if (fails(ENOMEM))
        return NULL;
    assert_ptr_equal(context, &nic.context);
    assert_int_equal(attributes->comp_mask, IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD);
    assert_int_equal(attributes->flags, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
    assert_ptr_equal(attributes->parent_domain, &nic.parent);
    assert_int_equal(direct->comp_mask, MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE);
    assert_int_equal(direct->cqe_size, 64);
    nic.cq_made.buf = allocate((size_t)count * 64, 4096, MLX5DV_RES_TYPE_CQ);
    nic.cq_made.dbrec = allocate(8, 8, MLX5DV_RES_TYPE_DBR);
    if (!nic.cq_made.buf || !nic.cq_made.dbrec)
        return NULL;
    memset(nic.cq_made.buf, 0xf0, (size_t)count * 64);
    memset(nic.cq_made.dbrec, 1, 8);
    nic.cq_made.cqe_cnt = nic.says_other_size ? count * 2 : count;
    nic.cq_made.cqe_size = 64;
    nic.cqs++;
    return &nic.cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
    assert_ptr_equal(cq, ibv_cq_ex_to_cq(&nic.cq));
    assert_int_equal(nic.qps, 0);
    nic.cqs--;
    return 0;
}

static struct ibv_qp *create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes,
                                struct mlx5dv_qp_init_attr *direct)
{
    uint32_t count = attributes->cap.max_send_wr * nic.wqes_factor;

    if (fails(EINVAL))
        return NULL;
    assert_ptr_equal(context, &nic.context);
    assert_int_equal(attributes->qp_type, IBV_QPT_RC);
    assert_ptr_equal(attributes->send_cq, ibv_cq_ex_to_cq(&nic.cq));
    assert_int_equal(attributes->comp_mask, IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    assert_ptr_equal(attributes->pd, &nic.parent);
    assert_int_equal(attributes->send_ops_flags, IBV_QP_EX_WITH_RDMA_READ);
    assert_int_equal(attributes->cap.max_recv_wr, 0);
    assert_int_equal(direct->create_flags, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE);
    nic.qp_made.sq.buf = allocate((size_t)count * 64, 4096, MLX5DV_RES_TYPE_QP);
    nic.qp_made.dbrec = allocate(8, 8, MLX5DV_RES_TYPE_DBR);
    if (!nic.qp_made.sq.buf || !nic.qp_made.dbrec)
        return NULL;
    memset(nic.qp_made.sq.buf, 2, (size_t)count * 64);
    memset(nic.qp_made.dbrec, 3, 8);
    nic.qp_made.sq.wqe_cnt = count;
    nic.qp_made.sq.stride = nic.has_wide_entries ? 128 : 64;
    nic.qp_made.bf.reg = nic.is_without_doorbell ? NULL : &nic.page;
    nic.qp.qp_num = 0x123456;
    nic.qps++;
    return &nic.qp;
}

static int destroy_qp(struct ibv_qp *qp)
{
    assert_ptr_equal(qp, &nic.qp);
    nic.qps--;
    return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    assert_ptr_equal(qp, &nic.qp);
    if (fails(EINVAL))
        return EINVAL;
    assert_in_range(nic.modifications, 0, 2);
    nic.modified[nic.modifications] = *attributes;
    nic.masks[nic.modifications++] = mask;
    return 0;
}

static int init_obj(struct mlx5dv_obj *object, uint64_t kinds)
{
    if (fails(ENOTSUP))
        return ENOTSUP;
    if (kinds == MLX5DV_OBJ_CQ) {
        assert_ptr_equal(object->cq.in, ibv_cq_ex_to_cq(&nic.cq));
        *object->cq.out = nic.cq_made;
    } else {
        assert_int_equal(kinds, MLX5DV_OBJ_QP);
        assert_ptr_equal(object->qp.in, &nic.qp);
        *object->qp.out = nic.qp_made;
    }
    return 0;
}

static const struct direct_calls calls = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .is_supported = is_supported,
    .alloc_parent_domain = alloc_parent_domain,
    .dealloc_pd = dealloc_pd,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .create_qp = create_qp,
    .destroy_qp = destroy_qp,
    .modify_qp = modify_qp,
    .init_obj = init_obj,
};

static char why[GAIA_DIRECT_WHY_SIZE];

static int begin(void **state)
{
    (void)state;
    (void)alarm(LIMIT_S);
    memset(&nic, 0, sizeof nic);
    memset(why, 'x', sizeof why - 1);
    nic.pd.context = &nic.context;
    nic.wqes_factor = 1;
    return 0;
}

static void expect_nothing_left(void)
{
    assert_int_equal(nic.lists + nic.parents + nic.cqs + nic.qps, 0);
}

/* ---- the probe ---- */

static void expect_probe(int error, const char *text)
{
    char device[64] = "";

    assert_int_equal(direct_probe_with(&calls, device, why), error);
    assert_string_equal(error ? why : device, text);
    expect_nothing_left();
}

static void test_probe(void **state)
{
    (void)state;
    nic.names[0] = "rxe0";
    nic.names[1] = "mlx5_0";
    nic.names[2] = "mlx5_1";
    nic.is_mlx5[1] = nic.is_mlx5[2] = true;
    nic.count = -1;
    nic.list_errno = ENOSYS; /* no kernel support */
    expect_probe(-ENODEV, "no RDMA device");
    nic.list_errno = EACCES;
    expect_probe(-ENODEV, "no RDMA device: Permission denied");
    nic.count = 0;
    expect_probe(-ENODEV, "no RDMA device");
    nic.count = 1;
    expect_probe(-ENODEV, "no mlx5 device: rxe0 is none");
    nic.count = 3;
    expect_probe(0, "mlx5_0");
}

/* What this machine has, whatever that is. */
static void test_probe_here(void **state)
{
    char device[64] = "";
    int error = gaia_direct_probe(device, why);

    (void)state;
    printf("here: %s\n", error ? why : device);
    assert_true(error <= 0);
    assert_true(error ? why[0] != '\0' && !device[0] : device[0] && !why[0]);
    assert_true(strlen(why) < sizeof why);
}

/* ---- queues ---- */

static int open_one(uint32_t depth, struct gaia_direct **direct_out)
{
    size_t size = gaia_direct_size(depth);
    struct gaia_direct_options options = {&nic.pd, depth, NULL, size};

    options.memory = memory = aligned_alloc(4096, size);
    assert_non_null(memory);
    memory_size = size;
    return direct_open_with(&calls, &options, direct_out, why);
}

static void expect_bytes(const void *at, unsigned char value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(((const unsigned char *)at)[i], value);
}

static void test_queues(void **state)
{
    (void)state;
    for (uint32_t depth = GAIA_DIRECT_DEPTH_MIN; depth <= 8192; depth *= 2)
        for (nic.wqes_factor = 1; nic.wqes_factor <= 4; nic.wqes_factor *= 2) {
            struct gaia_direct *direct;
            struct gaia_direct_queue queue;
            unsigned char *end;

            assert_int_equal(open_one(depth, &direct), 0);
            assert_string_equal(why, "");
            end = memory + gaia_direct_size(depth);
            gaia_direct_queue(direct, &queue);
            assert_int_equal(queue.qpn, 0x123456);
            assert_int_equal(queue.depth, depth);
            assert_int_equal(queue.wqes_count, depth * nic.wqes_factor);
            assert_ptr_equal(queue.doorbell, &nic.page);
            assert_true((unsigned char *)queue.wqes >= memory && (unsigned char *)queue.cqes >= memory);
            assert_true((unsigned char *)queue.wqes + (size_t)queue.wqes_count * 64 <= end);
            assert_true((unsigned char *)queue.record + 8 <= end);
            /* Each was written to in its turn: they don't overlap, nor share lines. */
            expect_bytes(queue.cqes, 0xf0, (size_t)depth * 64);
            expect_bytes(nic.cq_made.dbrec, 1, 8);
            expect_bytes(queue.wqes, 2, (size_t)queue.wqes_count * 64);
            expect_bytes(queue.record, 3, 8);
            assert_int_equal((uintptr_t)queue.cqes % 4096, 0);
            assert_int_equal((uintptr_t)queue.wqes % 4096, 0);
            assert_true((uintptr_t)queue.record / 64 != (uintptr_t)nic.cq_made.dbrec / 64);
            gaia_direct_close(direct);
            free(memory);
            expect_nothing_left();
        }
}

static void test_connect(void **state)
{
    struct gaia_direct *direct;
    struct gaia_direct_peer peer = {.qpn = 77,
                                    .receive_psn = 5,
                                    .send_psn = 6,
                                    .port = 1,
                                    .gid_index = 3,
                                    .reads = 16,
                                    .mtu = IBV_MTU_4096};

    (void)state;
    peer.gid.raw[15] = 9;
    assert_int_equal(open_one(DEPTH, &direct), 0);
    assert_int_equal(gaia_direct_connect(direct, &peer, why), 0);
    assert_int_equal(nic.modifications, 3);
    /* What the state diagram of the verbs asks for. */
    assert_int_equal(nic.modified[0].qp_state, IBV_QPS_INIT);
    assert_int_equal(nic.masks[0], IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    assert_int_equal(nic.modified[0].qp_access_flags, 0); /* nobody reads from here */
    assert_int_equal(nic.modified[1].qp_state, IBV_QPS_RTR);
    assert_int_equal(nic.masks[1], IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    assert_int_equal(nic.modified[1].dest_qp_num, 77);
    assert_int_equal(nic.modified[1].rq_psn, 5);
    assert_int_equal(nic.modified[1].ah_attr.is_global, 1);
    assert_int_equal(nic.modified[1].ah_attr.grh.dgid.raw[15], 9);
    assert_int_equal(nic.modified[1].ah_attr.grh.sgid_index, 3);
    assert_int_equal(nic.modified[2].qp_state, IBV_QPS_RTS);
    assert_int_equal(nic.masks[2], IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    assert_int_equal(nic.modified[2].sq_psn, 6);
    assert_int_equal(nic.modified[2].max_rd_atomic, 16);
    gaia_direct_close(direct);
    free(memory);
    expect_nothing_left();
}

/* Every call that can fail, made to. */
static void test_calls_that_fail(void **state)
{
    static const int errors[] = {-EOPNOTSUPP, -ENOMEM, -EOPNOTSUPP, -EINVAL, -EOPNOTSUPP};
    struct gaia_direct_peer peer = {.qpn = 1, .port = 1};
    struct gaia_direct *direct = NULL;

    (void)state;
    for (nic.fail_at = 1; nic.fail_at <= 5; nic.fail_at++) {
        nic.calls = 0;
        why[0] = '\0';
        assert_int_equal(open_one(DEPTH, &direct), errors[nic.fail_at - 1]);
        assert_int_equal(nic.calls, nic.fail_at);
        assert_true(why[0] != '\0');
        assert_null(direct);
        free(memory);
        expect_nothing_left();
    }
    for (unsigned i = 0; i < 3; i++) {
        nic.calls = nic.modifications = nic.fail_at = 0;
        assert_int_equal(open_one(DEPTH, &direct), 0);
        nic.fail_at = nic.calls + i + 1;
        assert_int_equal(gaia_direct_connect(direct, &peer, why), -EINVAL);
        assert_int_equal(nic.modifications, i);
        gaia_direct_close(direct);
        free(memory);
        expect_nothing_left();
    }
}

static void expect_refused(int error, const char *text)
{
    struct gaia_direct *direct = NULL;

    assert_int_equal(open_one(DEPTH, &direct), error);
    if (!strstr(why, text))
        fail_msg("'%s' does not say '%s'", why, text);
    assert_null(direct);
    free(memory);
    expect_nothing_left();
}

/* What the GPU's half could not work with. */
static void test_other_queues(void **state)
{
    (void)state;
    nic.says_other_size = true;
    expect_refused(-EOPNOTSUPP, "128 entries of 64 bytes, and not 64 of 64");
    nic.says_other_size = false;
    nic.has_wide_entries = true;
    expect_refused(-EOPNOTSUPP, "64 entries of 128 bytes");
    nic.has_wide_entries = false;
    nic.puts_elsewhere = true;
    expect_refused(-EOPNOTSUPP, "elsewhere");
    nic.puts_elsewhere = false;
    nic.is_without_doorbell = true;
    expect_refused(-EOPNOTSUPP, "without a doorbell");
    nic.is_without_doorbell = false;
    nic.wqes_factor = 3;
    expect_refused(-EOPNOTSUPP, "a send queue of 192 entries");
    nic.wqes_factor = 8; /* more than there is memory for */
    expect_refused(-ENOMEM, "a queue pair: Cannot allocate memory");
}

static void test_bad_options(void **state)
{
    static const uint32_t bad[] = {0, 1, 3, 65, 32769, 65536, UINT32_MAX};
    size_t size = gaia_direct_size(DEPTH);
    struct gaia_direct *direct = NULL;
    unsigned char *pages = aligned_alloc(4096, size + 4096);
    struct gaia_direct_options options[] = {
        {&nic.pd, DEPTH, pages, size - 1},
        {&nic.pd, DEPTH, pages + 64, size},
        {&nic.pd, DEPTH, NULL, size},
        {NULL, DEPTH, pages, size},
    };

    (void)state;
    assert_non_null(pages);
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gaia_direct_options one = {&nic.pd, bad[i], pages, SIZE_MAX};

        assert_int_equal(gaia_direct_size(bad[i]), 0);
        assert_int_equal(direct_open_with(&calls, &one, &direct, why), -EINVAL);
    }
    for (unsigned i = 0; i < sizeof options / sizeof options[0]; i++)
        assert_int_equal(direct_open_with(&calls, &options[i], &direct, why), -EINVAL);
    assert_int_equal(nic.calls, 0);
    assert_true(gaia_direct_size(GAIA_DIRECT_DEPTH_MAX) > 0);
    gaia_direct_close(NULL);
    free(pages);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_probe, begin),           cmocka_unit_test_setup(test_probe_here, begin),
        cmocka_unit_test_setup(test_queues, begin),          cmocka_unit_test_setup(test_connect, begin),
        cmocka_unit_test_setup(test_calls_that_fail, begin), cmocka_unit_test_setup(test_other_queues, begin),
        cmocka_unit_test_setup(test_bad_options, begin),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

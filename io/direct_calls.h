/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs that io/direct.c calls: those of libibverbs and libmlx5, which are looked for when they are
 * needed, or a test's. */
#ifndef GAIAFS_IO_DIRECT_CALLS_H
#define GAIAFS_IO_DIRECT_CALLS_H

#include <infiniband/mlx5dv.h>
#include <stdbool.h>

#include "io/direct.h"

struct direct_calls {
    struct ibv_device **(*get_device_list)(int *count_out);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    bool (*is_supported)(struct ibv_device *device);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *context,
                                          struct ibv_parent_domain_init_attr *attributes);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_cq_ex *(*create_cq)(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes,
                                   struct mlx5dv_cq_init_attr *direct);
    int (*destroy_cq)(struct ibv_cq *cq);
    struct ibv_qp *(*create_qp)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes,
                                struct mlx5dv_qp_init_attr *direct);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
    int (*init_obj)(struct mlx5dv_obj *object, uint64_t kinds);
};

int direct_probe_with(const struct direct_calls *calls, char device_out[64],
                      char why_out[GAIA_DIRECT_WHY_SIZE]);
int direct_open_with(const struct direct_calls *calls, const struct gaia_direct_options *options,
                     struct gaia_direct **direct_out, char why_out[GAIA_DIRECT_WHY_SIZE]);

#endif

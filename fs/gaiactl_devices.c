/* SPDX-License-Identifier: Apache-2.0 */
/* gaiactl devices: what there is to map files on, and why something is not. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "fs/gaiactl.h"
#include "gpu/cuda_list.h"
#include "io/direct.h"

static void print_abilities(json_t *can, bool which)
{
    const char *name;
    json_t *value;
    bool first = true;

    json_object_foreach(can, name, value)
    {
        if (json_is_true(value) != which)
            continue;
        if (first)
            printf("          %s ", which ? "can:" : "cannot:");
        printf("%s%s", first ? "" : ", ", name);
        first = false;
    }
    if (!first)
        printf("\n");
}

static void print_gpu(json_t *gpu)
{
    const char *error = json_string_value(json_object_get(gpu, "error"));
    char memory[16];

    printf("%-9s ", json_string_value(json_object_get(gpu, "device")));
    if (error) {
        printf("does not answer: %s\n", error);
        return;
    }
    const char *pci = json_string_value(json_object_get(gpu, "pci"));
    printf("%s, %s, compute capability %s, %lld multiprocessors%s%s\n",
           json_string_value(json_object_get(gpu, "name")),
           human((long long)json_integer_value(json_object_get(gpu, "total_bytes")), memory),
           json_string_value(json_object_get(gpu, "compute_capability")),
           (long long)json_integer_value(json_object_get(gpu, "multiprocessors")), *pci ? ", PCI " : "", pci);
    print_abilities(json_object_get(gpu, "can"), true);
    print_abilities(json_object_get(gpu, "can"), false);
    const char *not_used = json_string_value(json_object_get(gpu, "not_used"));
    if (not_used)
        printf("          not used: %s\n", not_used);
}

/* A GPU whose memory a NIC may write to, and the kernel pins. */
static bool takes_rdma(json_t *gpus)
{
    json_t *gpu;
    size_t i;

    json_array_foreach (gpus, i, gpu)
        if (json_is_true(json_object_get(json_object_get(gpu, "can"), "gpudirect_rdma")))
            return true;
    return false;
}

/* Whether a GPU of this machine could post reads to a NIC by itself (gpu/request.h): the NIC, or why not. */
static json_t *find_nic(json_t *gpus)
{
    char device[64] = "", why[GAIA_DIRECT_WHY_SIZE] = "";

    if (gaia_direct_probe(device, why))
        return json_pack("{s:s}", "not_present", why);
    if (!takes_rdma(gpus))
        return json_pack("{s:o}", "not_present", json_sprintf("%s, but no GPU with gpudirect_rdma", device));
    return json_pack("{s:s}", "nic", device);
}

static void print_reads(json_t *reads)
{
    const char *nic = json_string_value(json_object_get(reads, "nic"));

    if (nic)
        printf(
            "GPU-initiated reads: %s could serve them (never tried on such hardware; nothing uses it yet)\n",
            nic);
    else
        printf("GPU-initiated reads: not present (%s)\n",
               json_string_value(json_object_get(reads, "not_present")));
}

static int print_text(json_t *gpus, const char *why, json_t *reads)
{
    json_t *gpu;
    size_t i;

    printf("soft:N    on every mount, soft:0 to soft:7 or as many as -o soft_devices= says: memory of this "
           "machine\n"
           "          (gaiactl stat MOUNTPOINT shows what they hold)\n");
    if (!gpus)
        printf("cuda      not used: %s\n", why);
    json_array_foreach (gpus, i, gpu)
        print_gpu(gpu);
    print_reads(reads);
    return printed();
}

static int print_json(json_t *gpus, const char *why, json_t *reads)
{
    json_t *root = json_object();

    if (gpus)
        json_object_set(root, "cuda", gpus);
    else
        json_object_set_new(root, "cuda_not_used", json_string(why));
    json_object_set(root, "gpu_initiated_reads", reads);
    int failed = json_dumpf(root, stdout, JSON_INDENT(1));

    putchar('\n');
    failed |= printed();
    json_decref(root);
    return failed ? 1 : 0;
}

int devices_command(int argc, char **argv)
{
    char why[CUDA_WHY_SIZE] = "";
    bool json;
    int status = command_options(argc, argv, &json);

    if (status >= 0)
        return status;
    if (optind != argc) {
        fprintf(stderr, "usage: gaiactl devices [--json]\n");
        return 2;
    }
    json_t *gpus = cuda_list(why);
    json_t *reads = find_nic(gpus);
    status = json ? print_json(gpus, why, reads) : print_text(gpus, why, reads);
    json_decref(reads);
    json_decref(gpus);
    return status;
}

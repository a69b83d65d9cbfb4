/* SPDX-License-Identifier: Apache-2.0 */
/* A NIC that is none, for queues of RDMA reads (gpu/request.h). One thread is the NIC: it looks at doorbells,
 * reads requests from "device memory", moves bytes, and writes completions, as <infiniband/mlx5dv.h> has it:
 * the structures and the numbers are rdma-core's, not ours. It reads a request as late as a NIC may, moves
 * the bytes of several at once, in pieces and in any order, and completes in order, as an RC queue pair does.
 *
 * It is a strict one. What a real NIC would take amiss, or would not even notice, is a complaint: a request
 * that is not whole, a number out of turn, a doorbell before its record, a slot that is used too early. A key
 * that it does not know, and bytes outside of its memory, are no complaint: they fail the request, and what
 * follows is flushed. */
#ifndef GAIAFS_TESTS_GPU_NIC_H
#define GAIAFS_TESTS_GPU_NIC_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/request_device.h"
#include "tests/gpu/check.h"

static_assert(GAIA_WQE_SIZE == MLX5_SEND_WQE_BB && GAIA_WQE_RDMA_READ == MLX5_OPCODE_RDMA_READ, "");
static_assert(GAIA_WQE_COMPLETE == MLX5_WQE_CTRL_CQ_UPDATE && GAIA_RECORD_SEND == MLX5_SND_DBR, "");
static_assert(GAIA_WQE_PARTS * 16 ==
                  sizeof(mlx5_wqe_ctrl_seg) + sizeof(mlx5_wqe_raddr_seg) + sizeof(mlx5_wqe_data_seg),
              "");
static_assert(GAIA_CQE_SIZE == sizeof(mlx5_cqe64) && GAIA_CQE_OWNER == MLX5_CQE_OWNER_MASK, "");
static_assert(GAIA_CQE_REQUESTER == MLX5_CQE_REQ && GAIA_CQE_REQUESTER_ERROR == MLX5_CQE_REQ_ERR, "");
static_assert(GAIA_CQE_INVALID == MLX5_CQE_INVALID, "");
static_assert(offsetof(mlx5_cqe64, sop_drop_qpn) == 56 && offsetof(mlx5_cqe64, wqe_counter) == 60, "");
static_assert(offsetof(mlx5_cqe64, op_own) == 63 && offsetof(mlx5_err_cqe, syndrome) == 55, "");

/* What the NIC does with a ticket besides its work. */
enum trouble {
    FAIL,            /* an error, and all that follow are flushed */
    FAIL_SILENTLY,   /* an error, and then nothing */
    DIE,             /* nothing at all, from there on */
    WRONG_NUMBER,    /* a completion that names another request */
    WRONG_PAIR,      /* another queue pair */
    WRONG_OPERATION, /* says that a send has ended */
    COMPRESSED,
    RESPONDER, /* of the receive queue */
};

struct pair_options {
    uint32_t depth = 8;
    uint32_t wqes_count = 0; /* 0: depth */
    uint32_t batch = 0;      /* 0: depth */
    uint32_t first = 0;      /* ticket */
    uint64_t wait_ns = 30000 * MS;
    uint64_t answer_ns = 30000 * MS;
};

/* A queue pair, with its memory. */
class pair
{
  public:
    struct gaia_request_queue queue;
    struct gaia_request_control control;
    uint32_t record[2] = {};
    uint64_t doorbell = 0;
    /* Set by tests, also while it runs. */
    std::atomic<bool> is_paused{false};
    std::atomic<uint64_t> trouble_at{UINT64_MAX}; /* ticket */
    std::atomic<trouble> what{FAIL};
    std::atomic<uint32_t> syndrome{MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR};
    /* What happened. */
    std::atomic<unsigned> bells{0}, failed{0}, flushed{0}, complaints{0};
    std::atomic<uint64_t> completed_count{0};
    bool is_strict = true; /* complaints are the test's failure */

    pair(const pair_options &options, uint32_t qpn, uint64_t seed)
        : seen_(options.first), fetched_(options.first), completed_(options.first), random_{seed}
    {
        uint32_t wqes = options.wqes_count ? options.wqes_count : options.depth;

        queue = {};
        queue.depth = options.depth;
        queue.wqes_count = wqes;
        queue.batch = options.batch ? options.batch : options.depth;
        queue.qpn = qpn;
        queue.wait_ns = options.wait_ns;
        queue.answer_ns = options.answer_ns;
        queue.wqes = (uint8_t *)aligned((size_t)wqes * MLX5_SEND_WQE_BB);
        cqes_ = (mlx5_cqe64 *)aligned(options.depth * sizeof(*cqes_));
        queue.cqes = (const uint8_t *)cqes_;
        /* What was there before is anything; libmlx5 sets this byte. */
        for (uint32_t i = 0; i < options.depth; i++)
            cqes_[i].op_own = MLX5_CQE_INVALID << 4;
        gaia_request_start(&control, options.first);
        queue.control = &control;
        queue.record = record;
        queue.doorbell = &doorbell;
        first_ = options.first;
    }
    pair(const pair &) = delete;
    ~pair()
    {
        free(queue.wqes);
        free(cqes_);
    }

  private:
    friend class nic;

    struct flight {
        uint32_t ticket, length, moved, syndrome;
        uint8_t *to;
        const uint8_t *from;
    };

    mlx5_cqe64 *cqes_;
    uint64_t last_doorbell_ = 0;
    uint32_t first_, seen_, fetched_, completed_; /* tickets before these were rung for, read, completed */
    std::deque<flight> flights_;
    bool is_error_ = false, is_dead_ = false;
    random_numbers random_;

    void *aligned(size_t size)
    {
        void *memory = nullptr;

        if (posix_memalign(&memory, 64, size))
            abort();
        for (size_t i = 0; i < size; i++)
            ((uint8_t *)memory)[i] = (uint8_t)random_.next();
        return memory;
    }
};

class nic
{
  public:
    std::vector<std::unique_ptr<pair>> pairs;
    uint32_t delay_us = 0; /* at most, before a completion */

    explicit nic(uint64_t seed) : random_{seed}
    {
    }
    ~nic()
    {
        stop();
    }
    pair &add(const pair_options &options)
    {
        uint32_t qpn = (uint32_t)random_.below(1 << 24);

        pairs.push_back(std::make_unique<pair>(options, qpn, random_.next()));
        return *pairs.back();
    }
    /* Keys: of memory that is read from, of memory that is read into. */
    uint32_t expose(const void *bytes, uint64_t length)
    {
        return insert(exposed_, (uint64_t)bytes, length);
    }
    uint32_t enter(void *bytes, uint64_t length)
    {
        return insert(entered_, (uint64_t)bytes, length);
    }
    /* When all pairs and memory are there. */
    void start()
    {
        thread_ = std::thread(&nic::serve, this);
    }
    void stop()
    {
        is_stopped_ = true;
        if (thread_.joinable())
            thread_.join();
    }

  private:
    struct memory {
        uint64_t start, length;
    };

    std::map<uint32_t, memory> exposed_, entered_;
    std::atomic<bool> is_stopped_{false};
    std::thread thread_;
    random_numbers random_;

    uint32_t insert(std::map<uint32_t, memory> &keys, uint64_t start, uint64_t length)
    {
        uint32_t key;

        do
            key = (uint32_t)random_.next();
        while (exposed_.count(key) || entered_.count(key));
        keys[key] = {start, length};
        return key;
    }
    void serve()
    {
        while (!is_stopped_) {
            bool did = false;

            for (auto &p : pairs)
                did |= step(*p);
            if (!did)
                std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
    bool step(pair &p)
    {
        bool did = false;

        if (p.is_paused || p.is_dead_)
            return false;
        did |= look_at_doorbell(p);
        /* As late as this: when it has nothing else to do, or by chance. */
        while (p.fetched_ != p.seen_ && (p.flights_.empty() || random_.below(3) == 0)) {
            fetch(p);
            did = true;
        }
        for (uint64_t i = random_.below(8); i > 0 && !p.flights_.empty(); i--)
            move(p.flights_[random_.below(p.flights_.size())]);
        while (!p.flights_.empty() && !p.is_dead_ && random_.below(4)) {
            did = true;
            if (!complete(p))
                break;
        }
        return did;
    }
    void complain(pair &p, const char *what, uint32_t ticket)
    {
        p.complaints++;
        EXPECT(!p.is_strict, "queue pair %06x, request %u: %s", p.queue.qpn, ticket, what);
    }
    bool look_at_doorbell(pair &p)
    {
        uint64_t value = __atomic_load_n(&p.doorbell, __ATOMIC_ACQUIRE);
        uint32_t words[2], head, end, record, done;

        if (value == p.last_doorbell_)
            return false;
        p.last_doorbell_ = value;
        p.bells++;
        memcpy(words, &value, 8);
        head = be32toh(words[0]);
        end = p.seen_ + (uint16_t)((head >> 8) + 1 - p.seen_);
        if ((head & 0xff) != MLX5_OPCODE_RDMA_READ || head >> 24 ||
            be32toh(words[1]) != (p.queue.qpn << 8 | 3))
            complain(p, "a doorbell that is not the head of a read", end - 1);
        /* The NIC may read the record instead: it was written before. */
        record = be32toh(__atomic_load_n(&p.record[MLX5_SND_DBR], __ATOMIC_ACQUIRE));
        if (record > 0xffff || (uint16_t)(record - end) > p.queue.depth)
            complain(p, "a doorbell before its record", end - 1);
        /* Relaxed: what this thread learns here must not help the code that is tested. */
        done = __atomic_load_n(&p.control.done, __ATOMIC_RELAXED);
        if (end - p.completed_ > p.queue.depth || end - done > p.queue.depth) {
            complain(p, "more than the queue is deep", end - 1);
            return true; /* what it would read is not what it would do */
        }
        p.seen_ = end;
        return true;
    }
    /* Reads a request. */
    void fetch(pair &p)
    {
        uint32_t ticket = p.fetched_++;
        const uint8_t *at = p.queue.wqes + (size_t)(ticket & (p.queue.wqes_count - 1)) * MLX5_SEND_WQE_BB;
        mlx5_wqe_ctrl_seg control;
        mlx5_wqe_raddr_seg remote;
        mlx5_wqe_data_seg local;

        memcpy(&control, at, sizeof(control));
        memcpy(&remote, at + 16, sizeof(remote));
        memcpy(&local, at + 32, sizeof(local));
        if (be32toh(control.opmod_idx_opcode) != ((ticket & 0xffff) << 8 | MLX5_OPCODE_RDMA_READ))
            complain(p, "no read, or of another number", ticket);
        if (be32toh(control.qpn_ds) != (p.queue.qpn << 8 | 3))
            complain(p, "of another queue pair, or not three parts", ticket);
        if (control.signature || control.dci_stream_channel_id || control.imm || remote.reserved)
            complain(p, "something where nothing belongs", ticket);
        if (control.fm_ce_se != MLX5_WQE_CTRL_CQ_UPDATE)
            complain(p, "does not ask for a completion, or for more", ticket);
        if (!local.byte_count || be32toh(local.byte_count) & MLX5_INLINE_SEG)
            complain(p, "a length of 0, or bytes inline", ticket);
        p.flights_.push_back({ticket, be32toh(local.byte_count), 0, 0, (uint8_t *)be64toh(local.addr),
                              (const uint8_t *)be64toh(remote.raddr)});
        pair::flight &f = p.flights_.back();
        if (p.is_error_)
            f.syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
        else if (!is_inside(entered_, be32toh(local.lkey), (uint64_t)f.to, f.length))
            f.syndrome = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        else if (!is_inside(exposed_, be32toh(remote.rkey), (uint64_t)f.from, f.length))
            f.syndrome = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
        else if (p.trouble_at == ticket && (p.what == FAIL || p.what == FAIL_SILENTLY))
            f.syndrome = p.syndrome;
    }
    static bool is_inside(const std::map<uint32_t, memory> &keys, uint32_t key, uint64_t at, uint32_t length)
    {
        auto found = keys.find(key);

        return found != keys.end() && at >= found->second.start &&
               at - found->second.start <= found->second.length &&
               length <= found->second.length - (at - found->second.start);
    }
    /* Some of a read's bytes. */
    void move(pair::flight &f)
    {
        uint32_t left = f.length - f.moved, n = (uint32_t)random_.below(left + 1ull);

        if (f.syndrome)
            return;
        n = left < 64 ? left : n;
        memcpy(f.to + f.moved, f.from + f.moved, n);
        f.moved += n;
    }
    /* Ends the first of those under way, if it may. */
    bool complete(pair &p)
    {
        pair::flight f = p.flights_.front();
        bool is_troubled = p.trouble_at == f.ticket;

        if (is_troubled && p.what == DIE) {
            p.is_dead_ = true;
            return false;
        }
        if (!p.is_error_ && !f.syndrome && f.moved < f.length)
            return false;
        if (delay_us)
            std::this_thread::sleep_for(std::chrono::microseconds(random_.below(delay_us + 1ull)));
        p.flights_.pop_front();
        p.completed_++;
        p.completed_count++;
        if (p.is_error_) {
            p.flushed++;
            write(p, f.ticket, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, false);
        } else if (f.syndrome) {
            p.failed++;
            p.is_error_ = true;
            write(p, f.ticket, f.syndrome, false);
            p.is_dead_ = is_troubled && p.what == FAIL_SILENTLY;
        } else {
            write(p, f.ticket, 0, is_troubled);
        }
        for (pair::flight &other : p.flights_)
            other.syndrome = p.is_error_ ? (uint32_t)MLX5_CQE_SYNDROME_WR_FLUSH_ERR : other.syndrome;
        return true;
    }
    void write(pair &p, uint32_t ticket, uint32_t syndrome, bool is_spoilt)
    {
        mlx5_cqe64 *to = &p.cqes_[ticket & (p.queue.depth - 1)];
        uint32_t done = __atomic_load_n(&p.control.done, __ATOMIC_RELAXED);
        uint64_t words[8];
        mlx5_cqe64 cqe;

        for (uint64_t &word : words)
            word = random_.next();
        memcpy(&cqe, words, sizeof(cqe));
        cqe.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | p.queue.qpn);
        cqe.wqe_counter = htobe16((uint16_t)ticket);
        cqe.op_own = (uint8_t)((syndrome ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ) << 4);
        cqe.op_own |= (ticket & p.queue.depth) != 0;
        if (is_spoilt)
            spoil(p, ticket, cqe);
        memcpy(words, &cqe, sizeof(cqe));
        if (syndrome) {
            auto *error = (mlx5_err_cqe *)(void *)words;

            error->syndrome = (uint8_t)syndrome;
            error->vendor_err_synd = 0x88;
        }
        if (ticket - p.first_ >= p.queue.depth && (int32_t)(done - (ticket - p.queue.depth)) <= 0)
            complain(p, "a completion over one that nobody has seen", ticket);
        memcpy((void *)to, words, 48);
        __atomic_store_n((uint64_t *)(void *)to + 6, words[6], __ATOMIC_RELAXED);
        __atomic_store_n((uint64_t *)(void *)to + 7, words[7], __ATOMIC_RELEASE);
    }
    static void spoil(const pair &p, uint32_t ticket, mlx5_cqe64 &cqe)
    {
        if (p.what == WRONG_NUMBER)
            cqe.wqe_counter = htobe16((uint16_t)(ticket + 1));
        else if (p.what == WRONG_PAIR)
            cqe.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | (p.queue.qpn ^ 0x800000));
        else if (p.what == WRONG_OPERATION)
            cqe.sop_drop_qpn = htobe32(MLX5_OPCODE_SEND << 24 | p.queue.qpn);
        else if (p.what == COMPRESSED)
            cqe.op_own |= 3 << 2;
        else if (p.what == RESPONDER)
            cqe.op_own = (uint8_t)(MLX5_CQE_RESP_SEND << 4 | (cqe.op_own & 1));
    }
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of docs/design.md, section 5, as the code in cache/ applies them, beside the kernel's page cache.
 * README.md says which step stands for which lines of C, what is left out, and which macros choose a
 * configuration. Run by run.py.
 *
 * A page has four bytes, one for each writer: device 0, device 1, a CPU that writes with write(), a CPU that
 * stores through a mapping. A byte's value is how often its writer has written it: 0 to 3, two bits. So the
 * bytes of a page are one byte here, and "not stale" is ">=", byte by byte.
 *
 * With RACE both devices store to device 0's byte, every time another value: see "two devices and one byte".
 */
#ifndef ND
#define ND 1 /* devices */
#endif
#ifndef NP
#define NP 1 /* pages of the file, all in one leaf */
#endif
#ifndef STORES
#define STORES 2 /* of each device */
#endif
#ifndef STORES1
#define STORES1 STORES /* of device 1 */
#endif
#ifndef NR
#define NR 1 /* CPU threads that read whatever the kernel does not hold */
#endif
#ifndef THREADS
#define THREADS 0 /* of device 0 that store, besides the first */
#endif
#ifndef OPS
#define OPS 2 /* releases and acquires of each device, before the last ones */
#endif
#ifndef OPS1
#define OPS1 OPS /* of device 1 */
#endif
/* HAS_W, HAS_S: how often write() is called, how often the mapping is stored to. */
#ifndef HAS_W
#define HAS_W 0
#endif
#ifndef HAS_S
#define HAS_S 0
#endif

/* ---- bytes of a page ---- */
#define B_W 2
#define B_S 3
#define F(x, b) (((x) >> ((b)*2)) & 3)
#define ONE(b) (1 << ((b)*2))
#define FIELD(b) (3 << ((b)*2))
#define PUT(x, b, v) x = ((x) & (255 - FIELD(b))) | ((v) << ((b)*2))
/* All bits of the bytes in which x and y differ. */
#define DIFF(x, y) (((((x) ^ (y)) | (((x) ^ (y)) >> 1)) & 85) * 3)
#define COPY(into, from, mask) into = ((into) & (255 - (mask))) | ((from) & (mask))
#ifdef RACE
/* What was promised of device 0's byte is this value, and no other. */
#define GE(x, y) ((F(y, 0) == 0 || F(x, 0) == F(y, 0)) && F(x, 2) >= F(y, 2) && F(x, 3) >= F(y, 3))
#else
#define GE(x, y) (F(x, 0) >= F(y, 0) && F(x, 1) >= F(y, 1) && F(x, 2) >= F(y, 2) && F(x, 3) >= F(y, 3))
#endif

/* ---- the home ---- */
byte home[NP]; /* the backing file */
/* struct leaf */
#define KERNEL 1
#define INVALIDATING 2
#define CPUMOD 4
#define REFILLED 8
#define REREAD 16
#define DROPPED 32
byte lf[NP] = KERNEL + REFILLED;
byte invs;  /* leaf->invalidations */
bit lx;     /* the leaf exists */
#ifdef TRUNC
byte size = NP;   /* pages */
byte content = 255; /* the bytes of page 0 that lie before the end of the file */
bit truncs;       /* file->truncations, as far as anybody can tell two of them apart */
bit epoch;        /* the file was cut */
bit cut;          /* the truncation has returned */
#define INSIDE(p) ((p) < size)
#define CONTENT(p) ((p) == 0 -> content : 255)
#if NP > 1
#define CUT(p) ((p) == 1 -> 255 : 0) /* the bytes that the truncation takes */
#else
#define CUT(p) FIELD(0)
#endif
#else
#define epoch 0
#define INSIDE(p) true
#define CONTENT(p) 255
#define CUT(p) 0
#endif
#ifdef TRUNC
#define TRUNCATES 1
#else
#define TRUNCATES 0
#endif

/* struct leaf_copy of device d, page p. STALE: some entry of its vector, but its own, is behind R. */
#define X(d, p) ((d)*NP + (p))
#define PRESENT 1
#define BUSY 2
#define TWIN 4
#define SEALED 8
#define RELEASING 16
#define TOUCHED 32
#define PENDING 64
#define STALE 128
#define WAITED 256
short cp[ND * NP];
byte fr[ND * NP], tw[ND * NP]; /* the device's frame, its twin */
bit susp[ND], chgd[ND];        /* in replica->suspects; state->changes moved since the last acquire */

/* ---- the clients ---- */
#define NONE 0
#define RO 1 /* mapped, write protected */
#define RW 2
byte mp[ND * NP];
bit dead[ND];
#define IS_STORED(x) ((cp[x] & TWIN) && (!(cp[x] & SEALED) || (cp[x] & RELEASING)))

#if NP > 1 && !defined(TRUNC)
#define ANY_PAGE(pg)                                                                                 \
    if                                                                                               \
    :: pg = 0                                                                                        \
    :: pg = 1                                                                                        \
    fi
#elif NP > 1
#define ANY_PAGE(pg) pg = 1 /* the other one stays */
#else
#define ANY_PAGE(pg) pg = 0
#endif

#if NP > 1 && defined(TRUNC)
#define USED(p) ((p) == 1)
#else
#define USED(p) true
#endif

/* ---- the kernel ---- */
#define UP 1    /* cached and up to date */
#define DIRTY 2 /* mapped writable, stored to */
#define WB 4    /* a write-back is under way */
#define LOCK 8
byte kf[NP], kb[NP];
#if HAS_S
byte wbw[NP]; /* the write()'s byte when a write-back began */
#endif
bit nowrite;  /* a truncation is under way: no write-back starts */
bit inode;    /* the inode's lock: write(), truncate */

/* ---- what was promised ---- */
byte last[NP]; /* the last value of each byte */
byte prom[NP]; /* every read that begins now must see at least this */
byte snap[ND * NP]; /* what the device's last acquire promised it */
byte busyactors;    /* still storing and writing */
byte final;         /* devices that are through with the last release */
byte synced;        /* ... and with the last acquire */

/* ---- READs and heals (cache/reads.c, cache/heal.c) ---- */
#if HAS_W
byte rdst[NR]; /* 1: under way, 2: answered, but the reader has not unlocked the page */
byte rdpg[NR];
bit win;       /* window->first <= window->last */
byte winopen;
#define HS 2
bit h_link[HS], h_done[HS], h_leaf[HS];
byte h_ref[HS], h_pages[HS], h_drop[HS], h_reads[HS];
byte h_b[HS * NP], h_o[HS * NP];
chan queue = [HS] of { byte };
#endif
#ifdef WHOLE
/* write() covers the page, device 0's byte too, which becomes 3. It is known what that byte must be only where
 * the two did not race. */
#define W_FIELDS (FIELD(B_W) | FIELD(0))
#define W_BYTES(n) (((n) << (2 * B_W)) | 3)
byte stored;    /* stores of device 0 */
bit unreleased; /* device 0 has made a store, and no release since has returned */
bit sure;       /* it has made none since before the write() */
bit fixed;      /* nor since then: the byte is 3 for everybody */
#else
#define W_FIELDS FIELD(B_W)
#define W_BYTES(n) ((n) << (2 * B_W))
#endif

#ifdef RACE
#if ND != 2 || NP != 1 || defined(WHOLE) || defined(TRUNC) || defined(DEATH)
#error "RACE is two devices that live, one page, and nobody else who changes their byte"
#endif
/* Two devices and one byte. Device 0 stores 1, 2, ..., device 1 what is left below 4, so that a value tells whose
 * it is. last[0] has in the fields 0 and 1 what each stored last; of prom, snap, fr, tw and home only field 0 is
 * the byte. The promise: when all stores are released, the byte is for everybody who reads then what the home copy
 * and the bytes pending at that moment make it (of those the highest device's counts). That is what one of the two
 * stored last; and it is what a device stored that knew all stores before its own, if nobody has stored since. */
#define NTH(d, left) ((d) == 0 -> STORES - (left) + 1 : 4 - (left))
#define KNOWS(d) (F(snap[d], 0) != 0 || F(last[0], 1 - (d)) == 0 || (must != 0 && must == F(last[0], d)))
bit open[ND]; /* it has made a store, and no release since has returned */
bit mine[ND]; /* ... and no release or collect since has taken it: the device sees its own */
byte must;    /* what the byte must become: 0 where the two raced */

inline race_store(d, value)
{
    must = (KNOWS(d) -> value : 0);
    PUT(last[0], d, value);
    PUT(prom[0], 0, 0);
    PUT(snap[0], 0, 0);
    PUT(snap[1], 0, 0);
    PUT(fr[d], 0, value);
    open[d] = 1;
    mine[d] = 1
}

/* A call returns that began when device d had stored "before" last, and the byte was promised to be "promised". */
inline race_answer(d, before, promised)
{
    if
    :: F(before, d) == F(last[0], d) -> open[d] = 0
    :: else
    fi;
    if
    :: !open[0] && !open[1] ->
        zx = F(home[0], 0);
        for (zp : 0 .. ND - 1) {
            if
            :: (cp[zp] & PENDING) && F(fr[zp], 0) != F(tw[zp], 0) -> zx = F(fr[zp], 0)
            :: else
            fi
        }
        assert(zx == F(last[0], 0) || zx == F(last[0], 1));
        assert(must == 0 || zx == must);
        assert(F(prom[0], 0) == 0 || F(prom[0], 0) == zx);
        PUT(prom[0], 0, zx)
    :: else
    fi;
    if
    :: F(promised, 0) != F(prom[0], 0) -> promised = promised & ~FIELD(0) /* stored to since: nobody knows */
    :: else
    fi
}
#endif

/* Used inside of d_step only. */
hidden byte zc, zr, zm, zs, zp, zq, zb, zt, zx;

/* ---- consistency/rules.c, file.c ---- */
#ifdef BREAK_OWN_IS_NEWER
/* A copy does not become stale by the release of bytes to all of which its own device has stored, too. */
#define STORED_BY(d, p) (DIFF(fr[X(d, p)], tw[X(d, p)]) * ((cp[X(d, p)] & TWIN) != 0))
#define ALL_THE_SAME(i, d, p) && ((d) == NOBODY || (STORED_BY((d) % ND, p) & ~STORED_BY(i, p)) != 0)
#else
#define ALL_THE_SAME(i, d, p)
#endif
#define NOBODY 9

inline suspect_others(d, p, stale)
{
    for (zr : 0 .. ND - 1) {
        if
        :: zr != d && (cp[X(zr, p)] & (PRESENT | BUSY)) ALL_THE_SAME(zr, d, p) ->
            susp[zr] = 1;
            chgd[zr] = 1;
            cp[X(zr, p)] = cp[X(zr, p)] | stale
        :: else
        fi
    }
}

inline cpu_modified(p)
{
    lf[p] = lf[p] | CPUMOD;
    suspect_others(NOBODY, p, 0)
}

inline cpu_release(p)
{
    if
    :: lf[p] & CPUMOD ->
        lf[p] = lf[p] & ~CPUMOD;
        for (zr : 0 .. ND - 1) {
            if
            :: cp[X(zr, p)] & (PRESENT | BUSY) -> cp[X(zr, p)] = cp[X(zr, p)] | STALE
            :: else
            fi
        }
    :: else
    fi
}

inline drop_twin(x)
{
    cp[x] = cp[x] & ~(TWIN | SEALED | RELEASING | TOUCHED | PENDING);
    tw[x] = 0
}

/* collect.c: collect_pages() of one page. */
inline collect(p, releasing)
{
#ifdef BREAK_COLLECT_ORDER
    /* the highest device first: then the lowest one's bytes win */
    zc = ND;
    do
    :: zc > 0 ->
        zc--;
#else
    for (zc : 0 .. ND - 1) {
#endif
        if
        :: cp[X(zc, p)] & (PENDING | (releasing -> RELEASING : 0)) ->
#ifdef BREAK_FIRST_WINS
            /* where the home copy has changed since the twin was taken, that stays */
            COPY(home[p], fr[X(zc, p)], DIFF(fr[X(zc, p)], tw[X(zc, p)]) & ~DIFF(home[p], tw[X(zc, p)]));
#else
            COPY(home[p], fr[X(zc, p)], DIFF(fr[X(zc, p)], tw[X(zc, p)]) & CONTENT(p));
#endif
#ifdef RACE
            mine[zc] = 0;
#endif
            if
            :: cp[X(zc, p)] & RELEASING -> suspect_others(zc, p, STALE)
            :: else
            fi;
            if
#ifdef BREAK_TWIN_MERGED
            :: true ->
                tw[X(zc, p)] = home[p];
                cp[X(zc, p)] = cp[X(zc, p)] & ~(RELEASING | TOUCHED | PENDING)
#else
#ifdef BREAK_TWIN_KEPT
            :: true -> cp[X(zc, p)] = cp[X(zc, p)] & ~(RELEASING | TOUCHED | PENDING)
#else
            :: cp[X(zc, p)] & SEALED -> drop_twin(X(zc, p))
            :: else ->
                tw[X(zc, p)] = fr[X(zc, p)];
                cp[X(zc, p)] = cp[X(zc, p)] & ~(RELEASING | TOUCHED | PENDING)
#endif
#endif
            fi
        :: else
        fi
#ifdef BREAK_COLLECT_ORDER
    :: else -> break
    od
#else
    }
#endif
}

/* replica_settle(), index_put_copy(): the leaf goes with its last copy, and what it remembers with it. */
inline settle_leaf()
{
    zx = invs > 0;
    for (zt : 0 .. NP - 1) {
        zx = zx || (lf[zt] & INVALIDATING)
    }
    for (zs : 0 .. ND - 1) {
        zq = 0;
        for (zt : 0 .. NP - 1) {
            zq = zq | (cp[X(zs, zt)] & (PRESENT | BUSY | TWIN))
        }
        zx = zx || zq;
        if
        :: !zq -> susp[zs] = 0
        :: else
        fi
    }
    if
    :: !zx ->
        lx = 0;
        for (zt : 0 .. NP - 1) {
            lf[zt] = KERNEL | REFILLED
        }
    :: else
    fi
}

inline unbusy(x)
{
#ifdef BREAK_NO_WAKE
    cp[x] = cp[x] & ~BUSY;
#else
    cp[x] = cp[x] & ~(BUSY | WAITED);
#endif
    settle_leaf()
}

/* ---- cpu.c ---- */
inline mark_touched(p)
{
    for (zs : 0 .. ND - 1) {
        if
        :: cp[X(zs, p)] & RELEASING -> cp[X(zs, p)] = cp[X(zs, p)] | TOUCHED
        :: else
        fi
    }
}

/* heal_reread(): the kernel asks for a page that it does not hold. */
inline reread(p, direct)
{
#if HAS_W
#ifdef BREAK_DIRECT_IS_REREAD
    if
    :: true ->
#else
    if
    :: !(direct) ->
#endif
        for (zs : 0 .. HS - 1) {
            h_pages[zs] = h_pages[zs] & ~(1 << (p))
        }
    :: else
    fi
#else
    skip
#endif
}

inline before_read(p, direct)
{
    reread(p, direct);
    if
    :: lx && INSIDE(p) ->
#ifdef BREAK_READ_NO_COLLECT
        skip;
#else
#ifdef BREAK_DIRECT_COLLECTS
        collect(p, true);
#else
        collect(p, !(direct));
#endif
#endif
        if
        :: direct -> mark_touched(p)
        :: else
        fi;
        lf[p] = lf[p] | KERNEL | REFILLED | REREAD
    :: else
    fi
}

inline before_write(p, writeback)
{
    if
    :: lx && INSIDE(p) ->
        if
        :: !(writeback) ->
#ifndef BREAK_WRITE_NO_COLLECT
            collect(p, false);
#endif
#ifndef BREAK_NO_TOUCHED
            mark_touched(p)
#else
            skip
#endif
        :: else ->
#ifdef BREAK_WRITEBACK_COLLECTS
            collect(p, true)
#else
            skip
#endif
        fi;
        lf[p] = lf[p] | KERNEL;
        cpu_modified(p)
    :: else
    fi
}

/* cache_file_write() of a write-back, and heal_merge(). */
inline write_back(p, bytes)
{
    if
    :: INSIDE(p) ->
        before_write(p, true);
        COPY(home[p], bytes, CONTENT(p));
#if HAS_W
#ifndef BREAK_NO_REAPPLY
        for (zs : 0 .. HS - 1) {
            if
            :: h_link[zs] && (h_pages[zs] & (1 << (p))) ->
#ifdef BREAK_REAPPLY_OVER
                /* each heal puts the write-back's own bytes over what another heal has just put there */
                zb = h_b[zs * NP + p];
                COPY(zb, bytes, DIFF(bytes, h_o[zs * NP + p]));
                COPY(home[p], zb, W_FIELDS)
#else
                COPY(home[p], h_b[zs * NP + p], W_FIELDS & ~DIFF(bytes, h_o[zs * NP + p]))
#endif
            :: else
            fi
        }
#endif
#endif
    :: else
    fi
}

/* ---- heal.c ---- */
inline drop_begin(pages)
{
#if HAS_W
    for (zt : 0 .. NP - 1) {
        if
        :: invs == 0 -> lf[zt] = lf[zt] & ~(REREAD | DROPPED)
        :: else
        fi;
        if
        :: pages & (1 << zt) -> lf[zt] = lf[zt] | DROPPED
        :: else
        fi
    }
#endif
    invs++
}

inline drop_end()
{
    invs--;
#if HAS_W
    for (zt : 0 .. NP - 1) {
        if
        :: invs == 0 && (lf[zt] & DROPPED) && !(lf[zt] & REREAD) -> lf[zt] = lf[zt] & ~REFILLED
        :: invs == 0 && (lf[zt] & REREAD) -> lf[zt] = lf[zt] | REFILLED
        :: else
        fi;
        if
        :: invs == 0 -> lf[zt] = lf[zt] & ~(REREAD | DROPPED) /* not looked at until the next drop_begin() */
        :: else
        fi
    }
#endif
}

#if HAS_W
inline free_heal(s)
{
    h_link[s] = 0;
    h_done[s] = 0;
    h_leaf[s] = 0;
    h_pages[s] = 0;
    h_drop[s] = 0;
    h_reads[s] = 0;
    for (zt : 0 .. NP - 1) {
        h_b[s * NP + zt] = 0;
        h_o[s * NP + zt] = 0
    }
}
#endif

/* ---- the kernel: invalidate_inode_pages2_range() of one page ---- */
#define FREE(p) (!(kf[p] & LOCK))

inline invalidate(p)
{
    if
    :: d_step {
        FREE(p) && !(kf[p] & (WB | DIRTY)) ->
        kf[p] = 0;
        kb[p] = 0
       }
#if HAS_S
    :: d_step {
        FREE(p) && (kf[p] & DIRTY) && !(kf[p] & WB) && !nowrite ->
        kf[p] = (kf[p] | LOCK | WB) & ~DIRTY
       };
       d_step {
        write_back(p, kb[p]);
        kf[p] = 0;
        kb[p] = 0
       }
#endif
    fi
}

/* ---- a device's threads: stores and loads, and the fault thread that serves them (fault.c, fill.c) ---- */
#ifdef TRUNC
#define BETWEEN };  d_step {  /* the lock is let go: a truncation may come */
#else
#define BETWEEN    /* nobody else does anything to a page that is busy */
#endif
#ifdef CAPACITY
byte charged[ND];
#define ROOM(d) (charged[d] < CAPACITY)
#define NO_ROOM(d) !ROOM(d)
#define EVICTED skip /* as often as need be */
#else
#define NO_ROOM(d) true
#define EVICTED left--
#define ROOM(d) true
#endif
/* Let the store through: unprotect(), expose(). */
inline let_store(x)
{
    if
    :: (cp[x] & PRESENT) && !dead[d] -> mp[x] = RW
    :: else
    fi
}

inline take_twin(x)
{
    if
    :: (cp[x] & PRESENT) ->
        if
        :: !(cp[x] & TWIN) -> tw[x] = fr[x]
        :: else
        fi;
        cp[x] = (cp[x] | TWIN) & ~SEALED
    :: else
    fi
}

proctype Touch(byte d; byte stores)
{
    byte pg;
    bit load, ok;
#ifdef TRUNC
    bit seen;
#endif

    do
    :: atomic {
        stores > 0 && !dead[d] ->
        ANY_PAGE(pg);
        if
        :: d_step {
            mp[X(d, pg)] == RW ->
#ifdef TRUNC
            if
            :: epoch && F(fr[X(d, pg)], d) == 0 && (FIELD(d) & CUT(pg)) -> fr[X(d, pg)] = fr[X(d, pg)] + ONE(d)
            :: else
            fi;
#endif
#ifdef WHOLE
            PUT(fr[X(d, pg)], 0, STORES - stores + 1);
            PUT(last[pg], 0, 0);
            PUT(prom[pg], 0, 0);
            PUT(snap[X(d, pg)], 0, 0);
            unreleased = 1;
            stored++;
            sure = 0;
            fixed = 0;
#else
#ifdef RACE
            race_store(d, NTH(d, stores));
#else
            fr[X(d, pg)] = fr[X(d, pg)] + ONE(d);
            if
            :: FIELD(d) & CONTENT(pg) -> PUT(last[pg], d, F(fr[X(d, pg)], d))
            :: else
            fi;
#endif
#endif
            stores--
           }
        :: d_step {
            mp[X(d, pg)] != RW && (cp[X(d, pg)] & BUSY) ->
            cp[X(d, pg)] = cp[X(d, pg)] | WAITED
           };
           !(cp[X(d, pg)] & WAITED)
        :: d_step { /* serve_store() */
            mp[X(d, pg)] == RO && (cp[X(d, pg)] & (BUSY | PRESENT)) == PRESENT ->
            cp[X(d, pg)] = cp[X(d, pg)] | BUSY;
            take_twin(X(d, pg));
            BETWEEN
            let_store(X(d, pg));
            unbusy(X(d, pg))
           }
        :: mp[X(d, pg)] == NONE && (cp[X(d, pg)] & (BUSY | PRESENT)) == PRESENT -> /* serve_minor() */
           cp[X(d, pg)] = cp[X(d, pg)] | BUSY;
           ok = 1;
           goto expose
        :: mp[X(d, pg)] == NONE && !(cp[X(d, pg)] & (BUSY | PRESENT)) && !INSIDE(pg) -> /* SIGBUS */
           stores--
        :: d_step { /* take_absent(), grant() */
            mp[X(d, pg)] == NONE && !(cp[X(d, pg)] & (BUSY | PRESENT)) && INSIDE(pg) && ROOM(d) ->
#ifdef CAPACITY
            charged[d]++;
#endif
            lx = 1;
            cp[X(d, pg)] = cp[X(d, pg)] | BUSY;
            cpu_release(pg);
#ifndef BREAK_GRANT_NO_COLLECT
            collect(pg, false);
#endif
            /* gaia_rule_grant(): the vector becomes the home's. */
            cp[X(d, pg)] = cp[X(d, pg)] & ~STALE;
            for (zs : 0 .. ND - 1) {
                if
                :: zs != d && (cp[X(zs, pg)] & PENDING) -> cp[X(d, pg)] = cp[X(d, pg)] | STALE
                :: else
                fi
            }
#ifdef TRUNC
            seen = truncs;
#endif
            ok = 1
           };
           goto fill
        fi;
        pg = 0
       }
    :: false ->
fill:  atomic { /* the bytes are read from the home copy, and placed: nobody sees them before they count as present */
        fr[X(d, pg)] = home[pg];
#ifdef TRUNC
        goto settle
       };
       false;
settle: atomic {
#endif
        d_step { /* fill_settle() */
#ifdef TRUNC
            ok = seen == truncs;
            seen = 0;
#endif
            if
            :: ok -> cp[X(d, pg)] = cp[X(d, pg)] | PRESENT
            :: else -> fr[X(d, pg)] = 0; cp[X(d, pg)] = cp[X(d, pg)] & ~STALE
            fi
        };
        goto expose
       };
       false;
expose: atomic { /* fill_expose() for a store, or for a load */
        if
        :: ok
        :: ok -> load = 1
        :: !ok
        fi;
        d_step {
            if
            :: ok && !load -> take_twin(X(d, pg))
            :: else
            fi;
            BETWEEN
            if
            :: ok && !load -> let_store(X(d, pg))
            :: ok && load && (cp[X(d, pg)] & PRESENT) && !dead[d] && mp[X(d, pg)] == NONE -> mp[X(d, pg)] = RO
            :: else
            fi;
            unbusy(X(d, pg));
            load = 0;
            ok = 0;
            pg = 0
        }
       }
    :: stores == 0 || dead[d] -> break
    od;
    busyactors--
}

/* ---- release.c, acquire.c, drop.c: what a client calls, and the eviction ---- */
#define RELEASE 0
#define ACQUIRE 1
#define EVICT 2
#define OTHERS(d, p) ((cp[X(d, p)] & (BUSY | RELEASING)) || (lf[p] & INVALIDATING))
#if NP > 1
#define SOME(mask, condition) (((mask) & 1) && condition(0)) || (((mask) & 2) && condition(1))
#else
#define SOME(mask, condition) (((mask) & 1) && condition(0))
#endif
#define FREE_TO_TAKE(p) !OTHERS(d, p)
#define TOLD(p) (lf[p] & INVALIDATING)
#ifdef BREAK_NO_WAIT
#define NOT_TOLD true
#else
#define NOT_TOLD !(SOME(own, TOLD))
#endif
#define PLACED_NOW(p) ((cp[X(d, p)] & (BUSY | PRESENT)) == BUSY)
#define TAKEN(p) ((cp[X(d, p)] & PRESENT) && OTHERS(d, p))
#define HAS_TWIN(p) (cp[X(d, p)] & TWIN)
#define EVICTABLE(p) ((cp[X(d, p)] & PRESENT) && !OTHERS(d, p))
#define ALL ((1 << NP) - 1)

/* What a call does next. The lock is let go in between. */
#define BEGIN 0
#define FLUSH0 1
#define FLUSH1 2
#define WAIT_FREE 3
#define CORE 4
#define INVALIDATE 5
#define PENDINGS 6
#define TOLD_ALL 7
#define STALES 8
#define WAIT_PLACED 9
#define TAKE_BUSY 10
#define FORGET 11
#define END 12

/* The call returns: what it promises counts from now on. */
inline answer()
{
#ifdef WHOLE
    if
    :: begun == stored -> unreleased = 0
    :: else -> goal[0] = goal[0] & ~FIELD(0)
    fi;
    want[0] = want[0] & ~FIELD(0);
#endif
#ifdef RACE
    if
    :: !evictor -> race_answer(d, want[0], goal[0])
    :: else
    fi;
    want[0] = 0;
#endif
#ifdef TRUNC
    if
    :: old != epoch ->
        for (zp : 0 .. NP - 1) {
            want[zp] = want[zp] & ~CUT(zp);
            goal[zp] = goal[zp] & ~CUT(zp)
        }
    :: else
    fi;
#endif
    if
    :: !evictor && (!dead[d] || last_op) ->
        for (zp : 0 .. NP - 1) {
            if
            :: F(prom[zp], d) < F(want[zp], d) -> PUT(prom[zp], d, F(want[zp], d))
            :: else
            fi;
            if
            :: op == ACQUIRE -> snap[X(d, zp)] = goal[zp]
            :: else
            fi
        }
    :: else
    fi;
    if
    :: last_op && op == RELEASE -> final++
    :: last_op && op == ACQUIRE -> synced++
    :: else
    fi;
    for (zp : 0 .. NP - 1) {
        want[zp] = 0;
        goal[zp] = 0
    }
    st = (last_op && op == ACQUIRE -> END : BEGIN);
    op = 0;
    keep = 0;
    todo = 0
}

/* Trap the stores of what is busy now. */
inline seal()
{
    for (zp : 0 .. NP - 1) {
        if
        :: (own & (1 << zp)) && mp[X(d, zp)] == RW -> mp[X(d, zp)] = RO
        :: else
        fi
    }
}

inline take_free()
{
    for (zp : 0 .. NP - 1) {
        if
        :: !(todo & (1 << zp)) || OTHERS(d, zp) -> skip
        :: else ->
            todo = todo & ~(1 << zp);
            if
            :: IS_STORED(X(d, zp)) ->
                own = own | (1 << zp);
                cp[X(d, zp)] = cp[X(d, zp)] | BUSY
            :: else
            fi
        fi
    }
    seal();
    if
    :: own != 0 -> st = CORE
    :: own == 0 && todo == 0 && op == RELEASE -> answer()
    :: own == 0 && todo == 0 && op != RELEASE -> st = STALES
    :: else -> st = WAIT_FREE
    fi
}

/* libgaia's counters say that there is nothing to do, or list_stored(). */
inline list_stored()
{
#ifdef WHOLE
    begun = stored;
#endif
    todo = 0;
    for (zp : 0 .. NP - 1) {
        want[zp] = last[zp];
        if
        :: IS_STORED(X(d, zp)) -> todo = todo | (1 << zp)
        :: else
        fi
    }
    if
    :: todo == 0 && (op == RELEASE || !chgd[d]) -> answer()
    :: todo == 0 && op == ACQUIRE && chgd[d] -> st = STALES
    :: else -> take_free()
    fi
}

#if HAS_S
#define AFTER_BEGIN st = FLUSH0
#else
#define AFTER_BEGIN list_stored()
#endif
inline begin_acquire()
{
    for (zp : 0 .. NP - 1) {
        goal[zp] = prom[zp]
    }
    AFTER_BEGIN
}

/* The begin of a round of hand_over(). */
inline begin_round()
{
    held = 0;
    for (zp : 0 .. NP - 1) {
        if
        :: (pgs & (1 << zp)) && (lf[zp] & KERNEL) ->
            held = held | (1 << zp);
            lf[zp] = lf[zp] & ~KERNEL
        :: else
        fi
    }
    drop_begin(held);
#if HAS_W
    if
    :: held != 0 ->
        win = 1;
        winopen++
    :: else
    fi;
#endif
#ifdef BREAK_NO_INVALIDATE
    st = PENDINGS
#else
    st = (held == 0 -> PENDINGS : INVALIDATE)
#endif
}

inline find_modified()
{
    for (zp : 0 .. NP - 1) {
        if
        :: (own & (1 << zp)) && (cp[X(d, zp)] & TWIN) ->
            cp[X(d, zp)] = cp[X(d, zp)] | SEALED;
            zx = (fr[X(d, zp)] & CONTENT(zp)) != (tw[X(d, zp)] & CONTENT(zp));
            if
            :: (cp[X(d, zp)] & PENDING) && zx -> suspect_others(d, zp, STALE)
            :: (cp[X(d, zp)] & PENDING) && !zx -> skip
            :: !(cp[X(d, zp)] & PENDING) && zx ->
                pgs = pgs | (1 << zp);
#ifdef BREAK_EARLY_PENDING
                cp[X(d, zp)] = cp[X(d, zp)] | PENDING;
                suspect_others(d, zp, STALE);
#else
                cp[X(d, zp)] = cp[X(d, zp)] | RELEASING;
#endif
                lf[zp] = lf[zp] | INVALIDATING
            :: else -> drop_twin(X(d, zp))
            fi;
#ifdef RACE
            mine[d] = mine[d] && !zx
#endif
        :: else
        fi
    }
}

inline make_pending()
{
    zm = 0;
    for (zp : 0 .. NP - 1) {
        if
        :: (pgs & (1 << zp)) && (cp[X(d, zp)] & RELEASING) ->
            if
            :: cp[X(d, zp)] & TOUCHED ->
                cp[X(d, zp)] = cp[X(d, zp)] & ~TOUCHED;
                zm = zm | (1 << zp)
            :: else ->
                cp[X(d, zp)] = (cp[X(d, zp)] & ~RELEASING) | PENDING;
                suspect_others(d, zp, STALE)
            fi
        :: else
        fi
    }
    pgs = zm
}

/* release_work() is done. */
inline released()
{
    if
    :: keep -> st = FORGET
    :: !keep && todo == 0 && op == RELEASE -> answer()
    :: !keep && todo == 0 && op != RELEASE -> st = STALES
    :: else -> take_free()
    fi
}

inline find_stale()
{
    for (zp : 0 .. NP - 1) {
#ifndef BREAK_NO_CPU_RELEASE
        cpu_release(zp);
#endif
        if
        :: (cp[X(d, zp)] & PRESENT) && (cp[X(d, zp)] & STALE) -> own = own | (1 << zp)
        :: else
        fi
    }
    if
    :: own == 0 -> answer()
    :: else -> st = TAKE_BUSY
    fi
}

/* drop_pages(), from where its pages are busy. */
inline begin_drop()
{
    keep = 1;
    seal();
    st = ((SOME(own, HAS_TWIN))
#ifdef BREAK_EVICT_NO_RELEASE
          && op != EVICT
#endif
#ifdef BREAK_ACQUIRE_DROPS_STORES
          && op != ACQUIRE
#endif
          -> CORE : FORGET)
}

/* collect_and_forget(), free_frames(), let_go() */
inline forget()
{
    for (zp : 0 .. NP - 1) {
        if
        :: (own & (1 << zp)) && (cp[X(d, zp)] & PRESENT) ->
            collect(zp, false);
            drop_twin(X(d, zp));
            if
            :: op == ACQUIRE && ((fr[X(d, zp)] ^ home[zp]) & CONTENT(zp)) == 0 -> /* keep_unchanged() */
                cp[X(d, zp)] = cp[X(d, zp)] & ~STALE
            :: else ->
                cp[X(d, zp)] = cp[X(d, zp)] & ~(PRESENT | STALE);
                mp[X(d, zp)] = NONE;
                fr[X(d, zp)] = 0;
#ifdef CAPACITY
                charged[d]--;
#endif
                if
                :: op == EVICT -> chgd[d] = 1
                :: else
                fi
            fi
        :: else
        fi;
        if
        :: own & (1 << zp) -> unbusy(X(d, zp))
        :: else
        fi
    }
    own = 0
}

/* A call that would find nothing to do is left out. */
#ifdef RACE
#define UNRELEASED(p) (IS_STORED(X(d, p)) || open[d])
#else
#define UNRELEASED(p) (IS_STORED(X(d, p)) || F(prom[p], d) != F(last[p], d))
#endif
#define UNSEEN(p) (IS_STORED(X(d, p)) || snap[X(d, p)] != prom[p])

#ifdef TRUNC
#define NOTE_EPOCH old = epoch
#else
#define NOTE_EPOCH skip
#endif

proctype Caller(byte d; bit evictor; byte left)
{
    byte st, op, todo, own, pgs, mark, held, want[NP], goal[NP];
    bit last_op, keep;
#ifdef WHOLE
    byte begun;
#endif
#ifdef TRUNC
    bit old;
#endif

end:
    do
    :: d_step { /* choose() */
        st == BEGIN && evictor && left > 0 && NO_ROOM(d) && (EVICTABLE(0)) ->
        EVICTED;
        op = EVICT;
        own = 1;
        cp[X(d, 0)] = cp[X(d, 0)] | BUSY;
        begin_drop()
       }
#if NP > 1
    :: d_step {
        st == BEGIN && evictor && left > 0 && NO_ROOM(d) && (EVICTABLE(1)) ->
        EVICTED;
        op = EVICT;
        own = 2;
        cp[X(d, 1)] = cp[X(d, 1)] | BUSY;
        begin_drop()
       }
#endif
    :: d_step {
        st == BEGIN && !evictor && busyactors > 0 && left > 0 && (SOME(ALL, UNRELEASED)) ->
        left--;
        op = RELEASE;
        NOTE_EPOCH;
        list_stored()
       }
#ifndef NO_ACQUIRE
    :: d_step {
        st == BEGIN && !evictor && busyactors > 0 && left > 0 && ((SOME(ALL, UNSEEN)) || chgd[d]) ->
        left--;
        op = ACQUIRE;
        NOTE_EPOCH;
        begin_acquire()
       }
#endif
    :: d_step {
        st == BEGIN && !evictor && busyactors == 0 && !last_op ->
        op = RELEASE;
        NOTE_EPOCH;
        last_op = 1;
        left = 0;
        list_stored()
       }
    :: d_step {
        st == BEGIN && last_op && final == ND ->
        op = ACQUIRE;
        NOTE_EPOCH;
        begin_acquire()
       }
#if HAS_S
    :: d_step { /* flush_cpu() in libgaia: the kernel's own write-back does the work */
        st == FLUSH0 && !(kf[0] & (DIRTY | WB)) ->
#if NP > 1
        st = FLUSH1
       }
    :: d_step {
        st == FLUSH1 && !(kf[1] & (DIRTY | WB)) ->
#endif
        list_stored()
       }
#endif
    :: d_step { /* wait for file->changed */
        st == WAIT_FREE && (SOME(todo, FREE_TO_TAKE)) ->
        take_free()
       }
    :: d_step { /* release_work() */
        st == CORE && NOT_TOLD ->
        find_modified();
        mark = pgs;
        if
        :: !keep ->
            for (zp : 0 .. NP - 1) {
                if
                :: own & (1 << zp) -> unbusy(X(d, zp))
                :: else
                fi
            }
            own = 0
        :: else
        fi;
        if
        :: pgs == 0 -> released()
        :: else -> begin_round()
        fi
       }
    :: st == INVALIDATE ->
        if
        :: held & 1 -> invalidate(0)
        :: else
        fi;
#if NP > 1
        if
        :: held & 2 -> invalidate(1)
        :: else
        fi;
#endif
        st = PENDINGS
    :: d_step { /* the rest of a round of hand_over() */
        st == PENDINGS ->
#if HAS_W
        if
        :: held != 0 -> winopen--
        :: else
        fi;
#endif
        held = 0;
        drop_end();
        make_pending();
        if
        :: pgs != 0 -> begin_round()
        :: else -> st = TOLD_ALL
        fi
       }
    :: d_step {
        st == TOLD_ALL ->
        for (zp : 0 .. NP - 1) {
            if
            :: mark & (1 << zp) -> lf[zp] = lf[zp] & ~INVALIDATING
            :: else
            fi
        }
        mark = 0;
        settle_leaf();
        released()
       }
    :: d_step { /* acquire_alone() */
        st == STALES ->
        chgd[d] = 0;
        zx = susp[d];
        susp[d] = 0; /* the range is the whole leaf */
#ifdef BREAK_ACQUIRE_NO_DROP
        zx = 0;
#endif
        if
        :: !zx -> answer()
        :: zx && (SOME(ALL, PLACED_NOW)) -> st = WAIT_PLACED
        :: else -> find_stale()
        fi
       }
    :: d_step {
        st == WAIT_PLACED && !(SOME(ALL, PLACED_NOW)) ->
        find_stale()
       }
    :: d_step { /* take_busy() */
        st == TAKE_BUSY && !(SOME(own, TAKEN)) ->
        for (zp : 0 .. NP - 1) {
            if
            :: (own & (1 << zp)) && (cp[X(d, zp)] & PRESENT) -> cp[X(d, zp)] = cp[X(d, zp)] | BUSY
            :: else -> own = own & ~(1 << zp)
            fi
        }
        begin_drop()
       }
    :: d_step {
        st == FORGET ->
        forget();
        answer()
       }
    :: st == END -> break
    od
}

/* ---- CPUs ---- */
inline reads_begin(r, p)
{
#if HAS_W
    rdst[r] = 1;
    rdpg[r] = p;
    for (zs : 0 .. HS - 1) {
        h_reads[zs] = h_reads[zs] & ~(1 << (r)) /* a new number */
    }
#else
    skip
#endif
}

/* Reads whatever is not in the kernel's cache: read(), and faults of mappings. */
proctype Reader(byte r)
{
    byte pg;

end:
    do
    :: d_step {
        !(kf[0] & (UP | LOCK | WB)) && USED(0) ->
        kf[0] = LOCK;
        pg = 0
       };
       goto read
#if NP > 1
    :: d_step {
        !(kf[1] & (UP | LOCK | WB)) && (INSIDE(1) || nowrite) ->
        kf[1] = LOCK;
        pg = 1
       };
       goto read
#endif
    :: false ->
read: skip;
       if
       :: d_step {
            reads_begin(r, pg);
            before_read(pg, false)
          }
#ifdef DIRECT
       :: d_step { /* a fault of a mapping of a descriptor with O_DIRECT */
            reads_begin(r, pg);
            before_read(pg, true)
          }
#endif
       fi;
       kb[pg] = home[pg];
       if
       :: kf[pg] = (kf[pg] | UP) & ~LOCK; /* the answer unlocks the page */
          d_step {
#if HAS_W
            rdst[r] = 0;
            rdpg[r] = 0;
#endif
            pg = 0
          }
#if HAS_W
       :: rdst[r] = 2; /* the reader does, later than reads_end() */
          d_step {
            kf[pg] = (kf[pg] | UP) & ~LOCK;
            rdst[r] = 0;
            rdpg[r] = 0;
            pg = 0
          }
#endif
       fi
    od
}

#ifdef DIRECT
/* read() with O_DIRECT: the kernel's cache is not touched. */
proctype Direct(byte n)
{
end:
    do
    :: d_step {
        n > 0 ->
        n--;
        before_read(0, true);
        assert(GE(home[0], prom[0] & 63)) /* but for what a mapping has stored since */
       }
    od
}
#endif

#if HAS_S
/* Stores through a mapping: at once where the page is dirty (mapped writable), else after a fault. */
proctype Storer()
{
    byte n, pg;

    do
    :: n < HAS_S ->
        ANY_PAGE(pg);
        d_step {
            (kf[pg] & UP) && !(nowrite && CUT(pg)) && ((kf[pg] & DIRTY) || !(kf[pg] & (LOCK | WB))) ->
            kf[pg] = kf[pg] | DIRTY;
            kb[pg] = kb[pg] + ONE(B_S) * (1 + (epoch && F(kb[pg], B_S) == 0 && (CUT(pg) & FIELD(B_S))));
            PUT(last[pg], B_S, F(kb[pg], B_S));
            PUT(prom[pg], B_S, F(kb[pg], B_S));
            pg = 0;
            n++
        }
    :: else -> break
    od;
    skip;
    d_step {
        n = 0;
        busyactors--
    }
}

/* The kernel writes dirty pages back, on its own, or because an acquire asked for it. */
proctype Flusher()
{
    byte pg;

end:
    do
    :: d_step {
        (kf[0] & DIRTY) && FREE(0) && !(kf[0] & WB) && !nowrite ->
        kf[0] = (kf[0] | WB) & ~DIRTY;
        wbw[0] = F(kb[0], B_W);
        pg = 0
       };
       goto written
#if NP > 1
    :: d_step {
        (kf[1] & DIRTY) && FREE(1) && !(kf[1] & WB) && !nowrite ->
        kf[1] = (kf[1] | WB) & ~DIRTY;
        wbw[1] = F(kb[1], B_W);
        pg = 1
       };
       goto written
#endif
    :: false ->
written: skip;
       if
       :: d_step {
            write_back(pg, kb[pg]);
            kf[pg] = kf[pg] & ~WB;
            wbw[pg] = 0;
            pg = 0
          }
       :: d_step {
            wbw[pg] != F(kb[pg], B_W) -> /* as it was when the write-back began */
            zp = kb[pg];
            PUT(zp, B_W, wbw[pg]);
            write_back(pg, zp);
            kf[pg] = kf[pg] & ~WB;
            wbw[pg] = 0;
            pg = 0
          }
       fi
    od
}
#endif

#if HAS_W
/* write(): fuse_perform_write(), cache_file_write(), heal_start() to heal_finish(). */
#ifdef SPAN
#define FIRST_PAGE(pg) pg = 0
#define LAST_PAGE (NP - 1) /* one write() over all pages */
#else
#define FIRST_PAGE(pg) ANY_PAGE(pg)
#define LAST_PAGE next
#endif
#ifdef SHOWS_LOCKED
#define SHOWN(p) (kf[p] & (UP | LOCK))
#else
#define SHOWN(p) (kf[p] & UP)
#endif
#ifdef LATE
#define TOO_LATE true
#else
/* An answer comes early only where the rest of the heal may wait for this very answer. */
#define TOO_LATE ((own || nothing) && h_drop[slot] == (1 << next))
#endif
#define READ_BEFORE(r, state) ((h_reads[slot] & (1 << r)) && rdst[r] == state && rdpg[r] == next)
#if NR > 1
#define ANY_READ(state) (READ_BEFORE(0, state) || READ_BEFORE(1, state))
#else
#define ANY_READ(state) READ_BEFORE(0, state)
#endif
#if NP > 1
#define WRITTEN_BACK(pages) (((pages) & 1) && (kf[0] & WB) || ((pages) & 2) && (kf[1] & WB))
#else
#define WRITTEN_BACK(pages) (kf[0] & WB)
#endif
#ifdef BREAK_NO_HEAL
#define MAY_HEAL 0
#else
#define MAY_HEAL win
#endif
#ifdef BREAK_HEAL_NOT_RECENT
#define RECENT false
#else
#define RECENT recent
#endif

#ifdef WHOLE
#define WHOLE_PAGE PEEK /* it is up to date, and looked at no closer */
#define FINE(p) false
#define LOOKED false
#else
#define WHOLE_PAGE LOOK
#define LOOKED true
#define FINE(p) (SHOWN(p) && F(kb[p], B_W) == F(h_b[slot * NP + p], B_W))
#endif

#ifdef BREAK_LOOK_TRUSTS
#define MAY_TRUST(p) SHOWN(p)
#else
#define MAY_TRUST(p) (SHOWN(p) && F(kb[p], B_W) != F(h_o[slot * NP + p], B_W)) /* has_replaced() */
#endif

#define FILL 1
#define SEND 2
#define LOOK 3
#define PEEK 4
#define DROP 5
#define HEALING 6

/* The request is answered; write() returns with the last of them. */
inline reply()
{
    if
    :: own ->
        kf[next] = kf[next] & ~LOCK;
        kb[next] = 0
    :: else
    fi;
    own = 0;
    nothing = 0;
    recent = 0;
    drop = 0;
    slot = 0;
    pages = 0;
    if
    :: next < LAST_PAGE ->
        next++;
        st = FILL
    :: else ->
        for (zp : 0 .. NP - 1) {
            PUT(prom[zp], B_W, F(last[zp], B_W))
        }
#ifdef WHOLE
        if
        :: sure ->
            fixed = 1;
            PUT(prom[next], 0, 3);
            PUT(last[next], 0, 3)
        :: else
        fi;
#endif
        next = 0;
        inode = 0;
        st = BEGIN;
        if
        :: n >= HAS_W -> busyactors--
        :: else
        fi
    fi
}

inline write_pages()
{
    slot = HS;
    zx = 0;
    for (zp : 0 .. NP - 1) {
        zx = zx || ((pages & (1 << zp)) && (!lx || (lf[zp] & REFILLED)))
    }
    zx = zx && MAY_HEAL;
    for (zq : 0 .. HS - 1) { /* overwrite() */
        for (zp : 0 .. NP - 1) {
            if
            :: h_link[zq] && (pages & h_pages[zq] & (1 << zp)) -> COPY(h_b[zq * NP + zp], W_BYTES(n), W_FIELDS)
            :: else
            fi
        }
        if
        :: h_ref[zq] == 0 -> slot = zq
        :: else
        fi
    }
    if
    :: zx ->
        assert(slot < HS);
        h_link[slot] = 1;
        h_ref[slot] = 2;
        h_pages[slot] = pages;
        for (zp : 0 .. NP - 1) {
            if
            :: pages & (1 << zp) ->
                h_b[slot * NP + zp] = W_BYTES(n);
                h_o[slot * NP + zp] = home[zp] & W_FIELDS
            :: else
            fi
        }
        for (zp : 0 .. NR - 1) {
            if
            :: rdst[zp] != 0 -> h_reads[slot] = h_reads[slot] | (1 << zp)
            :: else
            fi
        }
    :: else
    fi;
    if
    :: winopen == 0 -> win = 0
    :: else
    fi;
    for (zp : 0 .. NP - 1) {
        if
        :: pages & (1 << zp) ->
            before_write(zp, false);
            COPY(home[zp], W_BYTES(n), W_FIELDS)
        :: else
        fi
    }
    if
    :: zx -> st = WHOLE_PAGE
    :: else -> reply()
    fi
}

proctype Writer()
{
    byte st, n, next, pages, slot, drop;
    bit own, recent, nothing, looked;

    do
    :: atomic {
        st == BEGIN && n < HAS_W && !inode ->
        inode = 1;
        n++;
        FIRST_PAGE(next);
        st = FILL
       }
    :: d_step { /* the bytes go into the cached page */
        st == FILL && FREE(next) ->
#ifdef WHOLE
        kf[next] = kf[next] | UP;
        sure = !unreleased;
#endif
        own = !(kf[next] & UP);
        if
        :: own -> kf[next] = kf[next] | LOCK
        :: else
        fi;
        n = n + epoch;
        COPY(kb[next], W_BYTES(n), W_FIELDS);
        PUT(last[next], B_W, n);
        pages = pages | (1 << next);
        if
        :: !own && next < LAST_PAGE -> next++
        :: else -> st = SEND
        fi
       }
    :: d_step { /* cache_file_write() */
        st == SEND && !WRITTEN_BACK(pages) ->
        write_pages()
       }
    :: d_step { /* look_at_last_page(), reads_wait() */
        st == LOOK && !ANY_READ(1) ->
        recent = ANY_READ(2);
        h_reads[slot] = 0;
        st = PEEK
       }
    :: d_step {
        st == PEEK ->
        drop = pages;
        if
        :: FINE(next) -> drop = pages & ~(1 << next)
        :: else -> nothing = LOOKED && !SHOWN(next) && !RECENT
        fi;
        recent = 0;
        st = DROP
       }
#ifdef RECENT_ANY
    :: d_step { /* a READ was answered a moment ago, and its reader has unlocked the page since */
        st == PEEK && !recent && !SHOWN(next) ->
        drop = pages;
        st = DROP
       }
#endif
    :: d_step { /* heal_finish() */
        st == DROP && drop != 0 ->
        h_leaf[slot] = lx;
        if
        :: lx -> drop_begin(drop)
        :: else
        fi;
        win = 1;
        winopen++;
        h_drop[slot] = drop;
        queue!slot;
        st = HEALING
       }
    :: d_step {
        st == DROP && drop == 0 ->
        free_heal(slot);
        h_ref[slot] = 0;
        reply()
       }
#ifdef LATE
    :: d_step { /* look_at_pages() */
        st == HEALING && !looked && h_link[slot] ->
        looked = 1;
        if
        :: MAY_TRUST(next) -> h_pages[slot] = h_pages[slot] & ~(1 << next)
        :: else
        fi
       }
#endif
    :: d_step {
        st == HEALING && (h_done[slot] || TOO_LATE) ->
        looked = 0;
        h_ref[slot]--;
        if
        :: h_ref[slot] == 0 -> free_heal(slot)
        :: else
        fi;
        reply()
       }
    :: st == BEGIN && n >= HAS_W -> break
    od
}

proctype Healer()
{
    byte s;

end:
    do
    :: queue?s;
       if
       :: h_drop[s] & 1 -> invalidate(0); h_drop[s] = h_drop[s] & ~1
       :: else
       fi;
#if NP > 1
       if
       :: h_drop[s] & 2 -> invalidate(1)
       :: else
       fi;
#endif
       d_step {
        h_drop[s] = 0;
        h_link[s] = 0;
        if
        :: h_leaf[s] ->
            drop_end();
            settle_leaf()
        :: else
        fi;
        winopen--;
        h_done[s] = 1;
        h_ref[s]--;
        if
        :: h_ref[s] == 0 -> free_heal(s)
        :: else
        fi;
        s = 0
       }
    od
}
#endif

/* ---- truncation ---- */
#ifdef TRUNC
#if NP > 1
#define LAST_CUT 1
#else
#define LAST_CUT 0
#endif
/* file_resized() for a page that lies past the new end. */
inline shrink_page(p)
{
    lf[p] = lf[p] & ~CPUMOD;
    home[p] = 0;
    for (zp : 0 .. ND - 1) {
        chgd[zp] = 1;
#ifdef BREAK_TRUNC_KEEPS
        cp[X(zp, p)] = cp[X(zp, p)] & ~(PRESENT | STALE);
#else
        drop_twin(X(zp, p));
        cp[X(zp, p)] = cp[X(zp, p)] & ~(PRESENT | STALE);
        fr[X(zp, p)] = 0;
#endif
        mp[X(zp, p)] = NONE;
        snap[X(zp, p)] = 0
    }
    last[p] = 0;
    prom[p] = 0;
    settle_leaf()
}

/* forget_tail(): what devices have past the end is no part of the file. */
inline forget_tail(p)
{
    for (zp : 0 .. ND - 1) {
#ifndef BREAK_TRUNC_KEEPS
        if
        :: cp[X(zp, p)] & TWIN -> COPY(tw[X(zp, p)], fr[X(zp, p)], CUT(p))
        :: else
        fi;
#endif
        snap[X(zp, p)] = snap[X(zp, p)] & ~CUT(p)
    }
    if
    :: lx -> cpu_modified(p)
    :: else
    fi
}

/* ftruncate() to a smaller size and back. */
proctype Truncate()
{
    d_step { /* fuse_set_nowrite(): write-backs under way end first, no other begins */
        !inode && !(kf[LAST_CUT] & WB) ->
        inode = 1;
        nowrite = 1
    };
    d_step { /* cache_file_truncate() */
#if NP > 1
        size = 1;
        truncs = 1;
        shrink_page(1);
#else
        content = 255 - CUT(0);
        truncs = 1;
        home[0] = home[0] & content;
        last[0] = last[0] & content;
        prom[0] = prom[0] & content;
        forget_tail(0);
#endif
        epoch = 1
    };
    d_step { /* truncate_pagecache() */
        FREE(LAST_CUT) && !(kf[LAST_CUT] & WB) ->
#if NP > 1
        kf[1] = 0;
        kb[1] = 0;
#else
        kb[0] = kb[0] & content; /* the rest of the page becomes zeros */
#endif
        nowrite = 0
    };
    d_step { /* larger again */
#if NP > 1
        size = 2;
#else
        content = 255;
        forget_tail(0);
        PUT(last[0], 0, 0);
#endif
        cut = 1;
        inode = 0
    };
    busyactors--
}
#endif

/* ---- death of a client ---- */
#ifdef DEATH
proctype Death()
{
end:
    d_step {
        dead[0] = 1;
        for (zp : 0 .. NP - 1) {
            mp[X(0, zp)] = NONE;
#ifdef BREAK_DEATH_FORGETS
            cp[X(0, zp)] = cp[X(0, zp)] & ~(TWIN | SEALED | RELEASING | TOUCHED | PENDING);
            tw[X(0, zp)] = 0;
#endif
        }
    }
}
#endif

/* ---- what must hold in every state ---- */
#ifdef LATE
#define SEES(b, p) GE((b) | FIELD(B_W), p)
#else
#define SEES(b, p) GE(b, p)
#endif
#ifdef WHOLE
#define OWN(d, p) true
#define KNOWN (fixed -> 255 : 252)
#else
#ifdef RACE
#define OWN(d, p) (!mine[d] || F(fr[d], 0) == F(last[0], d))
#define KNOWN (FIELD(B_W) | FIELD(B_S))
#else
#define OWN(d, p) (F(fr[X(d, p)], d) == F(last[p], d) || (CUT(p) & 255) == FIELD(0))
#define KNOWN 255
#endif
#endif
#ifdef TRUNC
/* What was cut off must not come back: a byte that was stored once before, and twice after. */
#define OLD(b, p) (cut && (((b) & CUT(p)) & ~((b) >> 1) & 85))
#else
#define OLD(b, p) false
#endif
#define CPU_SEES(p) (!(kf[p] & UP) || (SEES(kb[p], prom[p]) && !OLD(kb[p], p)))
#define DEVICE_SEES(d, p)                                                                            \
    (mp[X(d, p)] == NONE || !(cp[X(d, p)] & PRESENT)                                                 \
     || (GE(fr[X(d, p)], snap[X(d, p)]) && OWN(d, p)))

#if NP > 1
#define ALL_CPU_SEE (CPU_SEES(0) && CPU_SEES(1))
#define ALL_SEE(d) (DEVICE_SEES(d, 0) && DEVICE_SEES(d, 1))
#else
#define ALL_CPU_SEE CPU_SEES(0)
#define ALL_SEE(d) DEVICE_SEES(d, 0)
#endif
#if ND > 1
#define ALL_DEVICES_SEE (ALL_SEE(0) && ALL_SEE(1))
#else
#define ALL_DEVICES_SEE ALL_SEE(0)
#endif

/* Takes a step only where something is wrong: a state in which nobody else can is stuck. */
proctype Observer()
{
end:
    if
    :: !ALL_CPU_SEE -> assert(CPU_SEES(0));
#if NP > 1
       assert(CPU_SEES(1))
#endif
    :: !ALL_DEVICES_SEE -> assert(false)
    fi
}

#if HAS_W
#define HEALED (winopen == 0) /* what was answered late is healed by now */
#else
#define HEALED true
#endif
#define UNWRITTEN(p) (kf[p] & (DIRTY | WB))
init
{
    atomic {
        run Observer();
        busyactors = ND + THREADS + (HAS_W > 0 -> 1 : 0) + (HAS_S > 0 -> 1 : 0) + TRUNCATES;
        run Touch(0, STORES);
        run Caller(0, 0, OPS);
#if THREADS
        run Touch(0, STORES);
#endif
#if ND > 1
        run Touch(1, STORES1);
        run Caller(1, 0, OPS1);
#endif
#ifdef EVICTION
        run Caller(0, 1, EVICTION);
#endif
        run Reader(0);
#if NR > 1
        run Reader(1);
#endif
#ifdef DIRECT
        run Direct(DIRECT);
#endif
#if HAS_S
        run Storer();
        run Flusher();
#endif
#if HAS_W
        run Writer();
        run Healer();
#endif
#ifdef TRUNC
        run Truncate();
#endif
#ifdef DEATH
        run Death();
#endif
    }
    /* Everything was released and acquired by everybody: all copies are the same, and nothing is lost. */
    d_step {
        synced == ND && !((SOME(ALL, UNWRITTEN))) && HEALED ->
        for (zp : 0 .. NP - 1) {
            if
            :: lx -> collect(zp, false)
            :: else
            fi;
            assert((home[zp] & KNOWN) == (last[zp] & KNOWN));
#ifdef RACE
            assert(F(home[0], 0) == F(prom[0], 0) && !open[0] && !open[1]);
#endif
            assert(!(kf[zp] & UP) || kb[zp] == home[zp]);
            for (zq : 0 .. ND - 1) {
                assert(!(cp[X(zq, zp)] & PRESENT) || fr[X(zq, zp)] == home[zp])
            }
        }
    }
}

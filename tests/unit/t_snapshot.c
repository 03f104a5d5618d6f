/* Snapshots where the host's memory runs out; what they say is tests/lua/t_snapshot.lua's. */
#include "data_files.h"
#include "io/snapshot.h"

/* A segment of 20 MiB; a block of 4 MiB stays, one of 2 MiB goes, one of 5 MiB and one with its segment come and go. */
static const char sample[] =
    "(dp0\nVallocator_settings\np1\n(dp2\nsVdevice_traces\np3\n(lp4\n(lp5\n(dp6\nVaction\np7\nVfree_completed\n"
    "p8\nsVaddr\np9\nL12582912L\nsVframes\np10\n(lp11\n(dp12\nVfilename\np13\nV??\np14\nsVline\np15\nL0L\n"
    "sVname\np16\nVat::_ops::mm::call()\np17\nsa(dp18\ng13\nV/a/x.py\np19\nsg15\nL3L\nsg16\nVf\np20\nsasVsize\n"
    "p21\nL2097152L\nsVstream\np22\nL0L\nsVtime_us\np23\nL9L\nsa(dp24\ng7\nValloc\np25\nsg9\nL8388608L\nsg10\n"
    "(lp26\ng12\nag18\nasg21\nL5242880L\nsg22\nL0L\nsg23\nL9L\nsa(dp27\ng7\nVsegment_alloc\np28\nsg9\n"
    "L37748736L\nsg10\n(lp29\ng12\nag18\nasg21\nL12582912L\nsg22\nL0L\nsg23\nL9L\nsa(dp30\ng7\ng25\nsg9\n"
    "L37748736L\nsg10\n(lp31\ng12\nag18\nasg21\nL12582912L\nsg22\nL0L\nsg23\nL9L\nsa(dp32\ng7\ng8\nsg9\n"
    "L37748736L\nsg10\n(lp33\ng12\nag18\nasg21\nL12582912L\nsg22\nL0L\nsg23\nL9L\nsa(dp34\ng7\nVsegment_free\n"
    "p35\nsg9\nL37748736L\nsg10\n(lp36\ng12\nag18\nasg21\nL12582912L\nsg22\nL0L\nsg23\nL9L\nsa(dp37\ng7\ng8\n"
    "sg9\nL8388608L\nsg10\n(lp38\ng12\nag18\nasg21\nL5242880L\nsg22\nL0L\nsg23\nL9L\nsaasVsegments\np39\n(lp40\n"
    "(dp41\nVaddress\np42\nL4194304L\nsVblocks\np43\n(lp44\n(dp45\nVrequested_size\np46\nL4194000L\nsg21\n"
    "L4194304L\nsVstate\np47\nVactive_allocated\np48\nsasVdevice\np49\nL0L\nsVsegment_type\np50\nVlarge\np51\n"
    "sg22\nL0L\nsVtotal_size\np52\nL20971520L\nsas.";

static int read_and_replay(Device *dry, SnapshotReplay *replay, Err *e) {
    Snapshot *s = NULL;
    Ledger ledger;
    ledger_open(&ledger, dry, 0);
    int code = snapshot_open(path_x, -1, &s, e);
    if (!code) code = snapshot_replay(s, &ledger, replay, NULL, e);
    snapshot_close(s);
    return code ? code : ledger_check_zero(&ledger, e);
}

int main(void) {
    Device *cpu = NULL, *dry = NULL;
    SnapshotReplay replay = {.equal = 0};
    Err e = {0};
    folder_make();
    FILE *f = fopen(path_x, "wb");
    ok(f && fwrite(sample, 1, sizeof sample - 1, f) == sizeof sample - 1 && !fclose(f), "a snapshot is written");
    if (device_open("cpu", &cpu, &e) || device_dry_open(cpu, &dry, &e)) return ok(0, "the devices open"), tap_done();
    is_int(read_and_replay(dry, &replay, &e), OK, "it is read and replayed");
    ok(replay.equal == 2 && replay.different == 0 && replay.segments_equal == 2 && replay.segments_different == 0,
       "as it was recorded");
    is_int((long long)replay.peak.allocated, (4 + 5 + 12) << 20, "the most that was in blocks");
    is_int((long long)replay.allocated_start, 6 << 20, "what was in blocks at the start");
    is_int((long long)replay.reserved_end, 20 << 20, "the segment that is left");
    long before = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    for (long k = 1; code == ERR_HOST_MEMORY && k < 300; k++) {
        mem_fail_after(k);
        code = read_and_replay(dry, &replay, &e);
        mem_fail_after(0);
        failures += code == ERR_HOST_MEMORY && mem_live() == before;
        if (failures < k && code) break;
    }
    if (!ok(code == OK && failures > 20, "each of %ld host allocations fails once, nothing stays", failures))
        printf("# code %d: %s; %ld live\n", code, e.text, mem_live() - before);
    device_close(dry);
    device_close(cpu);
    folder_remove();
    return tap_done();
}

/* The exponents of gradients for scripts. */
#include <limits.h>
#include <math.h>

#include "bind.h"

/* One bin for each exponent of fp32, subnormals among them, and three for what has none. */
enum { LEAST = -149, MOST = 127, ZERO = MOST - LEAST + 1, INFINITE, NO_NUMBER, BINS };

/* The bin of x: of the exponent e with 2^e <= |x| < 2^(e+1) */
static int bin_of(float x) {
    if (x == 0) return ZERO;
    if (isnan(x)) return NO_NUMBER;
    return isinf(x) ? INFINITE : ilogbf(x) - LEAST;
}

static const Batch *numbers_at(lua_State *L, int index) {
    const Batch *batch = luaL_checkudata(L, index, BATCH_TYPE);
    if (batch->integers) bind_error(L, "expected numbers, found labels");
    return batch;
}

/* exponents(exact, stored) -> {[exponent, "zero", "inf" or "nan"] = {exact, stored, underflow}, ...}: how many numbers of each
 * batch have that exponent, and of how many in `exact` the one in the same place of `stored` is zero; bins with no number are
 * left out */
static int exponents(lua_State *L) {
    static const char *const words[] = {"zero", "inf", "nan"};
    const Batch *exact = numbers_at(L, 1), *stored = numbers_at(L, 2);
    lua_Integer counts[BINS][3] = {{0}};
    if (exact->count != stored->count) return bind_error(L, "expected two batches of the same size");
    for (int64_t i = 0; i < exact->count; i++) {
        const int a = bin_of(((const float *)exact->values)[i]), b = bin_of(((const float *)stored->values)[i]);
        counts[a][0]++;
        counts[b][1]++;
        counts[a][2] += a != ZERO && b == ZERO;
    }
    lua_newtable(L);
    for (int bin = 0; bin < BINS; bin++) {
        if (!counts[bin][0] && !counts[bin][1]) continue;
        if (bin < ZERO) lua_pushinteger(L, bin + LEAST);
        else lua_pushstring(L, words[bin - ZERO]);
        lua_createtable(L, 0, 3);
        bind_set_integer(L, "exact", counts[bin][0]);
        bind_set_integer(L, "stored", counts[bin][1]);
        bind_set_integer(L, "underflow", counts[bin][2]);
        lua_rawset(L, -3);
    }
    return 1;
}

void bind_open_exponents(lua_State *L) {
    static const luaL_Reg functions[] = {{"exponents", exponents}, {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}

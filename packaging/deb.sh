#!/bin/sh
# Builds BUILD/memtide_VERSION-1_ARCH.deb of what `make install` installs: `make deb`. dpkg-shlibdeps (dpkg-dev) names the
# packages that the program's libraries are from.
set -eu
root=$PWD/$BUILD/deb
rm -rf "$root"
make --no-print-directory install BUILD="$BUILD" DESTDIR="$root" PREFIX=/usr
arch=$(dpkg --print-architecture)
author='the memtide authors <memtide@packages.invalid>'
package=$BUILD/memtide_$VERSION-1_$arch.deb

doc=$root/usr/share/doc/memtide
mv "$doc/LICENSE" "$doc/copyright"
mv "$doc/CHANGELOG.md" "$doc/changelog" && gzip -9n "$doc/changelog"
gzip -9n "$root/usr/share/man/man1/memtide.1"
gzip -9n >"$doc/changelog.Debian.gz" <<CHANGES
memtide ($VERSION-1) unstable; urgency=medium

  * See changelog.gz.

 -- $author  $(LC_ALL=C date -R)
CHANGES
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_memtide" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
strip --strip-unneeded "$root/usr/bin/memtide" "$root/usr/lib/lua/5.4/memtide.so"
for library in "$root"/usr/lib/memtide/*.so; do [ ! -e "$library" ] || strip --strip-unneeded "$library"; done
strip --strip-debug "$root/usr/lib/libmemtide.a"

# cuDNN is looked for where the user has it: no package of Debian has it.
mkdir -p "$BUILD/shlibs/debian" && : >"$BUILD/shlibs/debian/control"
depends=$(cd "$BUILD/shlibs" && dpkg-shlibdeps -O "$root/usr/bin/memtide" 2>/dev/null | sed 's/^shlibs:Depends=//')
[ -n "$depends" ] || { echo "make deb: dpkg-shlibdeps does not say what the program depends on (apt-get install dpkg-dev)" >&2; exit 1; }
mkdir -p "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: memtide
Version: $VERSION-1
Architecture: $arch
Maintainer: $author
Section: science
Priority: optional
Depends: $depends
Suggests: openmpi-bin
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Description: memory of neural-network training, predicted and measured
 A short Lua script defines a network and the settings to sweep. memtide turns
 each setting into a step program, predicts its memory to the byte, runs it, and
 appends one CSV row per setting.
CONTROL
(cd "$root" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
rm -rf "$root"
echo "$package"

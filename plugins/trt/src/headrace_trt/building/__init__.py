"""Building plans: settings, networks, profiles and plugins, the build itself, and the cache of its results."""

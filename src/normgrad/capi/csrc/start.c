/* Finds or starts Python on the first call, and has it fill the table of functions.
 *
 * The library itself has no symbol of Python's: it looks them up in the process, or in the
 * libpython that the builder's interpreter uses. So it can be loaded anywhere, by any Python, and
 * still say what is wrong.
 */
#define _GNU_SOURCE
#include "host.h"
#include "table.h"

#include <Python.h> /* for its types alone */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "built.h" /* NORMGRAD_EXECUTABLE, _LIBPYTHON, _PYTHON, _ROOTS, _VERSION, _DIGEST */

struct normgrad_table normgrad_table;

enum { NOT_STARTED, READY, FAILED };
static atomic_int state = NOT_STARTED;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static pthread_t starter;
static atomic_int started; /* by `starter`, which is not done yet */
static int orphaned;
static char failure[1024];
static char library[PATH_MAX]; /* ours, absolute and without links */
static _Thread_local char recent[2048];

#define FUNCTIONS(X)                                                                           \
    X(int, Py_IsInitialized, (void))                                                           \
    X(const char*, Py_GetVersion, (void))                                                      \
    X(void, PyPreConfig_InitPythonConfig, (PyPreConfig*))                                      \
    X(PyStatus, Py_PreInitialize, (const PyPreConfig*))                                        \
    X(void, PyConfig_InitPythonConfig, (PyConfig*))                                            \
    X(PyStatus, PyConfig_SetBytesString, (PyConfig*, wchar_t**, const char*))                  \
    X(void, PyConfig_Clear, (PyConfig*))                                                       \
    X(PyStatus, Py_InitializeFromConfig, (const PyConfig*))                                    \
    X(int, PyStatus_Exception, (PyStatus))                                                     \
    X(PyThreadState*, PyEval_SaveThread, (void))                                               \
    X(void, PyEval_RestoreThread, (PyThreadState*))                                            \
    X(PyGILState_STATE, PyGILState_Ensure, (void))                                             \
    X(void, PyGILState_Release, (PyGILState_STATE))                                            \
    X(int, PyGILState_Check, (void))                                                           \
    X(PyThreadState*, PyGILState_GetThisThreadState, (void))                                   \
    X(PyObject*, PyDict_New, (void))                                                           \
    X(int, PyDict_SetItemString, (PyObject*, const char*, PyObject*))                          \
    X(PyObject*, PyDict_GetItemString, (PyObject*, const char*))                               \
    X(PyObject*, PyUnicode_DecodeFSDefault, (const char*))                                     \
    X(const char*, PyUnicode_AsUTF8, (PyObject*))                                              \
    X(PyObject*, PyLong_FromVoidPtr, (void*))                                                  \
    X(PyObject*, PyRun_StringFlags,                                                            \
      (const char*, int, PyObject*, PyObject*, PyCompilerFlags*))                              \
    X(void, PyErr_Clear, (void))                                                               \
    X(void, Py_DecRef, (PyObject*))

static struct {
#define MEMBER(type, name, arguments) type(*name) arguments;
    FUNCTIONS(MEMBER)
} py;

static const char* const bootstrap =
    "problem = ''\n"
    "try:\n"
    "    import os, signal, sys\n"
    /* To import it takes SIGINT for Python, which would only note it: nothing would end the
     * program. One that loaded us into its own Python keeps what it has. */
    "    if started and signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
    "        signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    "    own, *others = roots.split(os.pathsep)\n"
    "    sys.path[:0] = [own][own in sys.path:]\n"
    "    sys.path += [root for root in others if root not in sys.path]\n"
    "    from normgrad.capi.bridge import start\n"
    "    start(library, version, digest, host, table)\n"
    "except BaseException as error:\n"
    "    problem = f'{type(error).__name__}: {error}'\n";

__attribute__((format(printf, 1, 2))) static int fail(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    for (char* at = failure; *at; at++)
        if (*at == '\n')
            *at = ' ';
    return 0;
}

static int other_python(struct dl_phdr_info* info, size_t size, void* found)
{
    (void)size;
    static const char ours[] = "libpython" NORMGRAD_PYTHON ".";
    const char* path = info->dlpi_name ? info->dlpi_name : "";
    const char* slash = strrchr(path, '/');
    const char* name = slash ? slash + 1 : path;
    if (strncmp(name, "libpython3.", 11) != 0 || strncmp(name, ours, sizeof ours - 1) == 0)
        return 0;
    snprintf(found, 256, "%s", info->dlpi_name);
    return 1;
}

static int find_python(void)
{
    void* where = RTLD_DEFAULT;
    if (!dlsym(where, "Py_IsInitialized")) {
        char other[256] = "";
        if (dl_iterate_phdr(other_python, other))
            return fail("this process has loaded %s, the library was built for Python %s", other,
                        NORMGRAD_PYTHON);
        /* Global, also where somebody has loaded it for himself: NumPy's modules need it. */
        where = dlopen(NORMGRAD_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL);
        if (!where)
            return fail("cannot load Python: %s", dlerror());
    }
    *(void**)&py.Py_GetVersion = dlsym(where, "Py_GetVersion");
    const char* version = py.Py_GetVersion ? py.Py_GetVersion() : "of unknown version";
    size_t length = strlen(NORMGRAD_PYTHON);
    if (strncmp(version, NORMGRAD_PYTHON, length) != 0 || version[length] != '.')
        return fail("this process runs Python %.16s, the library was built for Python %s: "
                    "run 'normgrad build-capi' with this Python",
                    version, NORMGRAD_PYTHON);
#define LOOK_UP(type, name, arguments)                                                         \
    if (!(*(void**)&py.name = dlsym(where, #name)))                                            \
        return fail("Python %.16s lacks " #name, version);
    FUNCTIONS(LOOK_UP)
    return 1;
}

static int start_python(void)
{
    const char* wish = getenv("NORMGRAD_PYTHON");
    const char* executable = wish && *wish ? wish : NORMGRAD_EXECUTABLE;
    if (access(executable, X_OK) != 0)
        return fail("there is no interpreter %s; NORMGRAD_PYTHON may name another", executable);
    /* Neither PYTHONHOME nor PATH decides, and the program's locale stays as it is. */
    PyPreConfig before;
    py.PyPreConfig_InitPythonConfig(&before);
    before.use_environment = 0;
    before.configure_locale = 0;
    before.coerce_c_locale = 0;
    before.utf8_mode = 1;
    PyStatus status = py.Py_PreInitialize(&before);
    if (!py.PyStatus_Exception(status)) {
        PyConfig config;
        py.PyConfig_InitPythonConfig(&config);
        config.use_environment = 0;
        config.parse_argv = 0;
        config.install_signal_handlers = 0;
        status = py.PyConfig_SetBytesString(&config, &config.program_name, executable);
        if (!py.PyStatus_Exception(status))
            status = py.PyConfig_SetBytesString(&config, &config.executable, executable);
        if (!py.PyStatus_Exception(status))
            status = py.Py_InitializeFromConfig(&config);
        py.PyConfig_Clear(&config);
    }
    if (py.PyStatus_Exception(status))
        return fail("Python does not start from %s: %s", executable,
                    status.err_msg ? status.err_msg : "it asked to exit");
    return 1;
}

static int give(PyObject* names, const char* name, PyObject* value)
{
    int failed = !value || py.PyDict_SetItemString(names, name, value);
    if (value)
        py.Py_DecRef(value);
    return !failed;
}

static int fill_table(int started) /* with the GIL; whether Python is ours */
{
    int filled = 0;
    PyObject *names = py.PyDict_New(), *done = NULL;
    if (names && give(names, "roots", py.PyUnicode_DecodeFSDefault(NORMGRAD_ROOTS)) &&
        give(names, "library", py.PyUnicode_DecodeFSDefault(library)) &&
        give(names, "version", py.PyUnicode_DecodeFSDefault(NORMGRAD_VERSION)) &&
        give(names, "digest", py.PyUnicode_DecodeFSDefault(NORMGRAD_DIGEST)) &&
        give(names, "host", py.PyLong_FromVoidPtr((void*)&normgrad_host)) &&
        give(names, "table", py.PyLong_FromVoidPtr(&normgrad_table)) &&
        give(names, "started", py.PyLong_FromVoidPtr((void*)(intptr_t)started)))
        done = py.PyRun_StringFlags(bootstrap, Py_file_input, names, names, NULL);
    PyObject* problem = done ? py.PyDict_GetItemString(names, "problem") : NULL;
    const char* text = problem ? py.PyUnicode_AsUTF8(problem) : NULL;
    if (text && !*text)
        filled = 1;
    else
        fail("%s", text ? text : "not enough memory for Python");
    py.PyErr_Clear();
    if (done)
        py.Py_DecRef(done);
    if (names)
        py.Py_DecRef(names);
    return filled;
}

static int start(void)
{
    if (!find_python())
        return 0;
    if (py.Py_IsInitialized()) {
        PyGILState_STATE gil = py.PyGILState_Ensure();
        int filled = fill_table(0);
        py.PyGILState_Release(gil);
        return filled;
    }
    if (!start_python())
        return 0;
    int filled = fill_table(1);
    py.PyEval_SaveThread();
    return filled;
}

/* A caller that holds the GIL must not keep it while it waits for another that needs it. */
static PyThreadState* let_go(void)
{
    int (*initialized)(void);
    int (*holds)(void);
    PyThreadState* (*mine)(void);
    PyThreadState* (*save)(void);
    *(void**)&initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    *(void**)&holds = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    *(void**)&mine = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    *(void**)&save = dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    if (initialized && holds && mine && save && initialized() && mine() && holds())
        return save();
    return NULL;
}

/* fork does not wait for a start: it may be the start that forks, or wait for the caller's GIL. A
 * child without the thread that was at it has half a Python, which nobody will complete. */
static void in_child(void)
{
    int begun = atomic_load(&started);
    if (begun && pthread_equal(starter, pthread_self()))
        return;
    orphaned = begun;
    pthread_mutex_init(&starting, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* While a relative path still leads here: the program may be elsewhere at its first call. */
__attribute__((constructor)) static void find_library(void)
{
    Dl_info self;
    if (dladdr((void*)&find_library, &self) && !realpath(self.dli_fname, library))
        snprintf(library, sizeof library, "%s", self.dli_fname);
}

static int first_call(void)
{
    PyThreadState* held = let_go();
    pthread_mutex_lock(&starting);
    if (atomic_load(&state) == NOT_STARTED) {
        starter = pthread_self();
        atomic_store(&started, 1);
        int ready = orphaned ? fail("forked while another thread was starting Python") : start();
        if (!ready)
            fprintf(stderr, "normgrad: %s\n", failure);
        atomic_store(&state, ready ? READY : FAILED);
        atomic_store(&started, 0);
    }
    pthread_mutex_unlock(&starting);
    if (held) {
        void (*restore)(PyThreadState*);
        *(void**)&restore = dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
        restore(held);
    }
    return atomic_load(&state) == READY;
}

int normgrad_ready(void)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == NOT_STARTED && !first_call())
        return 0;
    if (now == FAILED)
        return 0;
    return py.Py_IsInitialized(); /* a Python that loaded us may be over already */
}

const char* normgrad_recent(void)
{
    if (!normgrad_ready())
        return *failure ? failure : "Python has been finalized";
    if (normgrad_table.recent((uintptr_t)recent, sizeof recent))
        recent[0] = 0;
    return recent;
}

/* The acl runtime, as far as the normalization gradients need it. Part of normgrad. */
#ifndef NORMGRAD_ACL_H
#define NORMGRAD_ACL_H

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The configuration file is not read. */
aclError aclInit(const char* configPath);
aclError aclFinalize(void);

/* The sentence for the calling thread's last failure; it stays until the thread asks again. */
const char* aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif

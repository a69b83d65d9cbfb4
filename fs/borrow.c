/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/borrow.h"

#include "fs/inode.h"

struct borrowed inode_borrow(struct inode *inode)
{
    return (struct borrowed){.inode = inode, .fd = inode->fd};
}

void inode_return(struct borrowed *borrowed)
{
    (void)borrowed;
}
